"""Run under `shim.c`: one run is killed, or meets a full disk, at each of its file operations, and is done again.

A kill before an operation is the kill after the one before it: it leaves the same files.

Reads requests, one JSON object a line: task, method, overrides, modes, every (take each so many-th operation). Answers each with
one JSON line. Everything is imported once; every run is a forked process of its own.
"""

import ctypes
import dataclasses
import gc
import hashlib
import json
import os
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from sparring.lab.errors import RunError
from sparring.lab.registry import task, task_of
from sparring.lab.runs import environment, run
from sparring.lab.runs.files import read_json
from sparring.lab.runs.folder import read_figures, read_metrics
from sparring.lab.runs.run import execute, prepare

MODES = {"count": 0, "after": 1, "half": 2, "full": 3}
TIMES = ("seconds_per_step", "seal")
shim = ctypes.CDLL(None)


def drawn(model: torch.nn.Module, data: Any, setting: Any) -> list[dict[str, Any]]:
    """A figure that tells one weight or one random number that is not as it was, and costs nothing."""
    weights = [float(weight.double().sum()) for weight in model.state_dict().values()]
    points = [*weights, *torch.rand(3).tolist()]
    axes = {"x_label": "", "x": points, "y_label": "", "log": False}
    return [{"kind": "curves", "title": "", "note": "", **axes, "series": {"all": points}}]


def sketched(setting: Any) -> Any:
    """The task of a setting with `drawn` in place of its figures, which are most of a short run's work."""
    return dataclasses.replace(task_of(setting), figures=drawn)


def digest(folder: Path) -> str:
    """Of everything in a folder, however long its steps took; two folders of one digest have one future."""
    parts: list[Any] = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        raw = path.read_bytes()
        try:
            lines = [json.loads(line) for line in ([raw] if path.suffix == ".json" else raw.splitlines())]
            held = json.dumps([{k: v for k, v in line.items() if k not in TIMES} for line in lines])
        except (ValueError, AttributeError):
            held = hashlib.sha256(raw).hexdigest()
        name = path.relative_to(folder).as_posix()
        parts.append([".".join(name.split(".")[:-2]) if name.endswith(".tmp") else name, held])
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def outcome(folder: Path) -> str:
    """A digest of everything that must not depend on what happened on the way, the names of the files included."""
    parts: list[Any] = [sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))]
    parts += [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.rglob("*.safetensors"))]
    for end in sorted(folder.rglob("result.json")):
        parts += [{k: v for k, v in line.items() if k not in TIMES} for line in read_metrics(end.parent, tail=False)]
        parts += [read_figures(end.parent), {k: v for k, v in read_json(end).items() if k not in TIMES}]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def honest(said: str) -> bool:
    """Whether the sentence about a full disk says what is the matter and promises nothing."""
    return "No space left" in said and not said.startswith("fault") and "untouched" not in said


def in_child(work: Callable[[], Any]) -> tuple[int, Any]:
    """What `work` returns in a forked process, and the signal that ended it (0: none)."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            answer = work()
        except BaseException:
            answer = "fault: " + traceback.format_exc()
        os.write(writing, json.dumps(answer).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0, json.loads(said) if said else None


class Trouble:
    """One run and what it meets.

    Args:
        setting: what to run.
        path: where; removed before each time.
    """

    def __init__(self, setting: Any, path: Path) -> None:
        self.setting, self.path = setting, path
        self.known: dict[str, str] = {}  # digest of what a death left -> what the next start made of it

    def armed(self, at: int, mode: str) -> Any:
        """The run until operation `at`."""
        shim.chaos_arm(at, MODES[mode], str(self.path).encode())
        try:
            execute(self.setting, self.path, "", 0.0)
        except RunError as error:
            return str(error)
        return [bool(shim.chaos_write(which)) for which in range(1, shim.chaos_count() + 1)]

    def plainly(self) -> str:
        """The run to its end."""
        execute(self.setting, self.path, "", 0.0)
        return outcome(self.path)

    def fault(self, at: int, mode: str, wanted: str) -> str | None:
        """What is wrong with what became of the run that met `mode` at operation `at`."""
        shutil.rmtree(self.path, ignore_errors=True)
        number, said = in_child(lambda: self.armed(at, mode))
        if mode != "full" and number != signal.SIGKILL:
            return f"was not killed: {said}"
        if mode == "full" and not isinstance(said, list) and not honest(str(said)):
            return str(said)
        left = digest(self.path)
        if left not in self.known:
            self.known[left] = str(in_child(self.plainly)[1])
        found = self.known[left]
        return None if found == wanted else f"ended differently: {found}"


def meet(asked: dict[str, Any], path: Path) -> dict[str, Any]:
    """Every operation in every mode."""
    setting = task(asked["task"]).setting(asked["method"], overrides=asked["overrides"])
    prepare(setting)  # imports what the children will need, once
    gc.freeze()
    trouble = Trouble(setting, path)
    _, writes = in_child(lambda: trouble.armed(0, "count"))
    assert isinstance(writes, list), writes
    _, wanted = in_child(trouble.plainly)
    done, wrong = 0, []
    for mode in asked["modes"]:
        for at in range(1, len(writes) + 1, asked.get("every", 1)):
            if mode == "half" and not writes[at - 1]:
                continue  # nothing but a write can be cut in two
            done += 1
            if fault := trouble.fault(at, mode, wanted):
                wrong.append([at, mode, fault])
    shutil.rmtree(path, ignore_errors=True)
    counts = {"operations": len(writes), "done": done, "identical": done - len(wrong)}
    return {**counts, "states": len(trouble.known), "wrong": wrong[:5]}


def main() -> None:
    torch.set_num_threads(1)
    about = environment.describe()
    environment.describe = lambda: about  # asks git, which is not what is tested
    run.task_of = sketched  # type: ignore[attr-defined]
    memory = Path("/dev/shm")  # a kill leaves what was written, whatever it was written to
    root = Path(tempfile.mkdtemp(prefix="sparring-chaos-", dir=memory if os.access(memory, os.W_OK) else None))
    try:
        for line in sys.stdin:
            print(json.dumps(meet(json.loads(line), root / "run")), flush=True)
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
