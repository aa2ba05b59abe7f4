"""Mutated inputs for one reader or one saved file: `fuzz.py KIND NAME COUNT SEED`, one JSON line about what happened.

A reader must give a reading or a `DataError`. A saved file must give exactly what was saved or a `RunError`; of a file of
records, some of those that were saved. The storage of a sweep (Optuna's format, without a checksum) must be read or refused.
"""

import io
import json
import logging
import os
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

import numpy as np
import torch
from optuna.exceptions import StorageInternalError
from optuna.trial import TrialState

sys.path.insert(0, str(Path(__file__).parents[2]))
from data_samples import SAMPLES, Sample, archive, png, write
from sparring.lab.compare import read_run
from sparring.lab.data import DataError
from sparring.lab.data.files import Folder
from sparring.lab.data.own import pictures
from sparring.lab.data.own.tables import read_table
from sparring.lab.data.pickles import read_pickle
from sparring.lab.data.ratings.ratings import named_ratings
from sparring.lab.data.tinyimagenet import tiny_imagenet
from sparring.lab.errors import RunError
from sparring.lab.registry import task
from sparring.lab.report.story import Chapter, read_story, write_story
from sparring.lab.runs import checkpoint, folder
from sparring.lab.runs.files import read_json, write_json
from sparring.lab.runs.run import execute
from sparring.lab.runs.shapes import SWEEP
from sparring.lab.studies import records
from sparring.lab.sweep import Plan, parse_param, storage, study_of
from sparring.lab.sweep.claims import trials_of

SECONDS = 10  # of computing, for one input
TOKENS = [b"\0", b"\xff" * 8, b"-1", b"9" * 400, b"1e999", b"NaN", b"{", b"[" * 2000, b'"', b"\n", b"\t", b"../", b"$tensor",
          b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", "ü".encode(), b"null", b'"seal": "x", ', b"true"]  # fmt: skip
STATES = ("state.json", "previous.json", "state-", "best-")
SAVED = ("config.json", "environment.json", "files.json", "metrics.jsonl", "result.json", "figures.json", "probe-x.json",
         "sweep.json", "story.json", "records.jsonl", *STATES)  # fmt: skip
STORAGES = ("journal", "sweep.db")


def jpeg() -> bytes:
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(np.arange(64 * 64 * 3, dtype=np.uint32).astype(np.uint8).reshape(64, 64, 3)).save(out, "JPEG")
    return out.getvalue()


def ratings(name: str, raw: bytes) -> Sample:
    return Sample({f"ratings/{name}": raw}, lambda folder: named_ratings(folder, f"ratings/{name}"), 2)


IMAGENET = "tiny-imagenet/tiny-imagenet-200"
MORE = {
    "movielens": ratings("u.data", b"196\t242\t3\t881250949\n186\t302\t4\t891717742\n"),
    "movielens-1m": ratings("ratings.dat", b"1::1193::5::978300760\n2::661::3::978302109\n"),
    "movielens-20m": ratings("ratings.csv", b"userId,movieId,rating,timestamp\n1,2,3.5,1112486027\n7,29,4,1\n"),
    "netflix": ratings("combined_data_1.txt", b"1:\n1488844,3,2005-09-06\n2:\n822109,5,2005-05-13\n"),
    "million-song": ratings("train_triplets.txt", b"b80344d063\tSOAKIMP12A8C\t1\nb80344d063\tSOBBMDR12A8C\t7\n"),
    "tiny-imagenet": Sample(
        {
            f"{IMAGENET}/wnids.txt": b"n1\nn2\n",
            **{f"{IMAGENET}/train/n{c}/images/n{c}_0.JPEG": jpeg() for c in (1, 2)},
        },
        lambda folder: tiny_imagenet("train", folder),
        2,
    ),
    "own-csv": Sample(
        {"own/mine.csv": b'text,label\n"a, ""b""",good\nc,bad\n'},
        lambda folder: read_table(folder.root / "own" / "mine.csv"),
        2,
    ),
    "own-jsonl": Sample(
        {"own/mine.jsonl": b'{"text": "a", "label": 1}\n{"text": "b", "label": 2}\n'},
        lambda folder: read_table(folder.root / "own" / "mine.jsonl"),
        2,
    ),
    "own-images": Sample(
        {f"own/{c}/0.png": png(np.arange(48, dtype=np.uint8).reshape(4, 4, 3)) for c in "ab"},
        lambda folder: pictures.pixels(pictures.in_folders(folder.root / "own").paths),
        2,
    ),
}
READERS = {**SAMPLES, **MORE}


def place_for() -> Path:
    """A folder in memory, where there is one: what is tested is reading, not the disk."""
    memory = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="sparring-fuzz-", dir=memory if os.access(memory, os.W_OK) else None))


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
    sample, root = READERS[name], place_for()
    packed = [".gz", ".xz", ".bz2", ".tar", ".tar.gz", ".zip"] if not name.startswith("own-") else []
    ways = ["", "", "", *packed]
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
    root = place_for()
    victim, read = SAVING.get(name, run_file)(root, name)
    raw, wanted = victim.read_bytes(), read()
    assert wanted

    def attempt() -> None:
        victim.write_bytes(mutated(raw, draw))
        try:
            found = read()
        except RunError:
            return
        same = all(entry in wanted for entry in found) if name == "records.jsonl" else found == wanted
        if not same and name not in STORAGES:
            raise AssertionError(f"read as something else: {victim.read_bytes()!r:.300}")

    try:
        while True:
            yield attempt
    finally:
        shutil.rmtree(root)


Saved = tuple[Path, Callable[[], Any]]


def run_file(root: Path, name: str) -> Saved:
    """A file of a run folder."""

    def stop(session: Any) -> None:
        if session.progress.step == 3:
            raise KeyboardInterrupt

    setting = task("sequential-digits").setting("plain", overrides={"epochs": 1, "hidden": 4, "batch": 250})
    with suppress(KeyboardInterrupt):
        execute(setting, root, "", 0.0, stop if name in STATES else lambda session: None)
    if name in STATES:
        (root / "previous.json").unlink()
        if name == "previous.json":
            (root / "state.json").rename(root / name)
        victim = root / name if name.endswith("json") else next(root.glob(f"{name}*"))
        return victim, lambda: json.dumps(canonical(checkpoint.load(root)))
    write_json(root / "probe-x.json", {"figures": folder.read_figures(root)[:1]})

    def read() -> str:
        run = read_run(root)
        folder.check_finished_data(root, setting)
        found = [run.config, run.result, run.environment, run.metrics, run.figures]
        return json.dumps(found, sort_keys=True)  # what stands twice, alike, changes the order alone

    return root / name, read


def sweep_file(root: Path, name: str) -> Saved:
    """The summary of a sweep."""
    trial = {"settings": {"radius": 1.0}, "value": 0.5, "test": 0.4, "validation": [0.5]}
    words = dict.fromkeys(("name", "task", "scale", "method", "score", "better"), "x")
    write_json(root / name, {**words, "seeds": [0], "log": {"radius": True}, "trials": [trial]})
    return root / name, lambda: read_json(root / name, SWEEP)


def story_file(root: Path, name: str) -> Saved:
    """The chapters of a demonstration."""
    write_story(root, [Chapter("x", "why?", ("plain", "vat"), "error", "lower", "error in %", "digits")])
    return root / name, lambda: read_story(root)


def records_file(root: Path, name: str) -> Saved:
    """The records of a study."""
    words = {"task": "x", "scale": "tiny", "method": "plain", "role": "evaluation", "values": {"lr": 0.1}, "version": 1}
    for seed in range(3):
        figures = {"validation": {"error": 0.5}, "test": {"error": None}}
        records.append(root / name, {**words, "seed": seed, **figures, "when": "today"})
    return root / name, lambda: [dict(record.entries) for record in records.read(root / name)]


def storage_file(root: Path, name: str) -> Saved:
    """Where the trials of a sweep are kept."""
    storage.ATTEMPTS = 1
    place = f"journal:{root / name}" if name == "journal" else f"sqlite:///{root / name}"
    plan = Plan(task("sequential-digits"), "vat", "tiny", [0], dict([parse_param("radius=1,2")]), root, None, {}, place)
    study = study_of(plan)
    for value in (1, 2):
        trial = study.ask()
        trial.suggest_categorical("radius", [1, 2])
        trial.set_user_attr("test", 0.5)
        study.tell(trial, float(value), TrialState.COMPLETE)

    def read() -> list[dict[str, Any]]:
        try:
            return [trial.params for trial in trials_of(study_of(plan))]
        except StorageInternalError as error:  # `sweep_all` makes a sentence of it
            raise RunError(str(error)) from error

    return root / name, read


SAVING: dict[str, Callable[[Path, str], Saved]] = {
    "sweep.json": sweep_file,
    "story.json": story_file,
    "records.jsonl": records_file,
    "journal": storage_file,
    "sweep.db": storage_file,
}


def canonical(tree: Any) -> Any:
    """A state as JSON."""
    if isinstance(tree, torch.Tensor):
        return tree.tolist()
    if isinstance(tree, dict):
        return [[canonical(key), canonical(value)] for key, value in tree.items()]
    return [canonical(entry) for entry in tree] if isinstance(tree, (list, tuple)) else tree


def fuzz(kind: str, name: str, count: int, seed: int) -> dict[str, Any]:
    """What happened to `count` mutated inputs."""
    logging.getLogger("sparring").setLevel(logging.CRITICAL)
    torch.set_num_threads(1)
    draw = random.Random(seed)
    inputs = {"reader": reader, "pickle": pickles, "saved": saved}[kind](name, draw)
    faults, longest = [], 0.0

    def late(number: int, frame: Any) -> None:
        raise TimeoutError(f"took more than {SECONDS} seconds")

    signal.signal(signal.SIGPROF, late)
    signal.signal(signal.SIGALRM, late)  # one that waits for ever, on whatever machine
    for number, attempt in zip(range(count), inputs):
        began = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        signal.alarm(60 * SECONDS)
        try:
            attempt()
        except Exception:
            faults.append([number, traceback.format_exc()[-1500:]])
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        longest = max(longest, time.process_time() - began)
    inputs.close()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    found = {"name": name, "inputs": count, "faults": len(faults), "memory_mb": memory, "longest_s": round(longest, 2)}
    return {**found, "first": faults[:3]}


if __name__ == "__main__":
    print(json.dumps(fuzz(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
