"""Mutated inputs for one reader or one saved file: `fuzz.py KIND NAME COUNT SEED`, one JSON line about what happened.

A reader must give a reading or a `DataError`. A saved file must give exactly what was saved or a `RunError`.
"""

import json
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))
from data_samples import SAMPLES, archive, write
from sparring.lab.compare import read_run
from sparring.lab.data import DataError
from sparring.lab.data.files import Folder
from sparring.lab.data.pickles import read_pickle
from sparring.lab.errors import RunError
from sparring.lab.registry import task
from sparring.lab.runs import checkpoint, folder
from sparring.lab.runs.files import read_json, write_json
from sparring.lab.runs.run import execute
from sparring.lab.runs.shapes import SWEEP

SECONDS = 20  # for one input
TOKENS = [b"\0", b"\xff" * 8, b"-1", b"9" * 400, b"1e999", b"NaN", b"{", b"[" * 2000, b'"', b"\n", b"\t", b"../", b"$tensor",
          b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", "ü".encode(), b"null", b'"seal": "x", ', b"true"]  # fmt: skip
SAVED = ("config.json", "environment.json", "files.json", "metrics.jsonl", "result.json", "figures.json")
STATES = ("state.json", "state-", "best-")


def mutated(raw: bytes, draw: random.Random) -> bytes:
    """`raw` with a few things wrong with it."""
    found = bytearray(raw)
    for _ in range(draw.choice((1, 1, 1, 2, 4, 16))):
        at = draw.randrange(len(found) + 1)
        match draw.randrange(8):
            case 0 if found:
                found[at % len(found)] ^= 1 << draw.randrange(8)
            case 1 if found:
                found[at % len(found)] = draw.randrange(256)
            case 2:
                del found[at:]
            case 3:
                del found[at : at + draw.randrange(1, 64)]
            case 4:
                found[at:at] = draw.choice(TOKENS)
            case 5:
                end = at + draw.randrange(1, 200)
                found[at:at] = found[at:end]
            case 6:
                other = draw.randrange(len(found) + 1)
                size = draw.randrange(1, 32)
                found[at : at + size] = found[other : other + size]
            case _:
                token = draw.choice(TOKENS)
                found[at : at + len(token)] = token
    return bytes(found)


def reader(name: str, draw: random.Random) -> Iterator[Callable[[], None]]:
    """Inputs for a reader, plain, wrapped and inside archives."""
    sample, root = SAMPLES[name], Path(tempfile.mkdtemp(prefix="sparring-fuzz-"))
    ways = ["", "", "", ".gz", ".xz", ".bz2", ".tar", ".tar.gz", ".zip"]
    laid: dict[str, dict[Path, bytes]] = {}
    for way in dict.fromkeys(ways):
        place = root / (way or "plain")
        if way in ("", ".gz", ".xz", ".bz2"):
            write(place, sample.files, way)
        else:
            path, raw = archive(sample, way)
            (place / path).parent.mkdir(parents=True)
            (place / path).write_bytes(raw)
        laid[way] = {path: path.read_bytes() for path in sorted(place.rglob("*")) if path.is_file()}

    def attempt() -> None:
        way = draw.choice(ways)
        victim = draw.choice(list(laid[way]))
        victim.write_bytes(mutated(laid[way][victim], draw))
        try:
            sample.read(Folder(root / (way or "plain")))
        except DataError:
            return
        finally:
            victim.write_bytes(laid[way][victim])

    try:
        while True:
            yield attempt
    finally:
        shutil.rmtree(root)


def pickles(name: str, draw: random.Random) -> Iterator[Callable[[], None]]:
    """Inputs for the reader of pickles."""
    import pickle

    import numpy as np

    seeds = [pickle.dumps({b"data": np.zeros((2, 3), np.uint8), b"labels": [1, 2]}, protocol) for protocol in range(5)]

    def attempt() -> None:
        try:
            read_pickle(mutated(draw.choice(seeds), draw))
        except DataError:
            return

    while True:
        yield attempt


def saved(name: str, draw: random.Random) -> Iterator[Callable[[], None]]:
    """A saved file with something wrong: refused, or read as what was saved."""
    root = Path(tempfile.mkdtemp(prefix="sparring-fuzz-"))
    short = {"epochs": 1, "hidden": 4, "batch": 250}

    def stop(session: Any) -> None:
        if session.progress.step == 3:
            raise KeyboardInterrupt

    setting = task("sequential-digits").setting("plain", overrides=short)
    with suppress(KeyboardInterrupt):
        execute(setting, root, "", 0.0, stop if name in STATES else lambda session: None)
    for older in root.glob("previous.json"):
        older.unlink()
    trial = {"settings": {"radius": 1.0}, "value": 0.5, "test": 0.4, "validation": [0.5]}
    words = dict.fromkeys(("name", "task", "scale", "method", "score", "better"), "x")
    write_json(root / "sweep.json", {**words, "seeds": [0], "log": {"radius": True}, "trials": [trial]})
    if name in STATES:
        victim = root / name if name.endswith("json") else next(root.glob(f"{name}*"))
        read: Callable[[], Any] = lambda: canonical(checkpoint.load(root))
    elif name == "sweep.json":
        victim, read = root / name, lambda: read_json(root / name, SWEEP)
    else:
        victim = root / name

        def read() -> Any:
            run = read_run(root)
            folder.check_finished_data(root, setting)
            return [run.config, run.result, run.environment, run.metrics, run.figures]

    raw = victim.read_bytes()
    wanted = json.dumps(read())

    def attempt() -> None:
        victim.write_bytes(mutated(raw, draw))
        try:
            found = json.dumps(read())
        except RunError:
            return
        if found != wanted:
            raise AssertionError(f"read as something else: {victim.read_bytes()!r:.300}")

    try:
        while True:
            yield attempt
    finally:
        shutil.rmtree(root)


def canonical(tree: Any) -> Any:
    """A state as JSON."""
    if isinstance(tree, torch.Tensor):
        return tree.tolist()
    if isinstance(tree, dict):
        return [[canonical(key), canonical(value)] for key, value in tree.items()]
    return [canonical(entry) for entry in tree] if isinstance(tree, (list, tuple)) else tree


def main() -> None:
    kind, name, count, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    import logging

    logging.getLogger("sparring").setLevel(logging.CRITICAL)
    torch.set_num_threads(1)
    draw = random.Random(seed)
    inputs = {"reader": reader, "pickle": pickles, "saved": saved}[kind](name, draw)
    faults, longest = [], 0.0

    def late(number: int, frame: Any) -> None:
        raise TimeoutError(f"took more than {SECONDS} seconds")

    signal.signal(signal.SIGALRM, late)
    for number, attempt in zip(range(count), inputs):
        began = time.monotonic()
        signal.alarm(SECONDS)
        try:
            attempt()
        except Exception:
            faults.append([number, traceback.format_exc()[-1500:]])
        signal.alarm(0)
        longest = max(longest, time.monotonic() - began)
    inputs.close()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    found = {"name": name, "inputs": count, "faults": len(faults), "memory_mb": memory, "longest_s": round(longest, 2)}
    print(json.dumps({**found, "first": faults[:3]}))


if __name__ == "__main__":
    main()
