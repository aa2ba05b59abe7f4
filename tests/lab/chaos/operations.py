"""Run under `shim.c`: one run is killed, or meets a full disk, at each of its file operations, and is done again.

Arguments as JSON: task, method, overrides, folder, every (take each so many-th operation), modes. Prints one JSON line.
"""

import ctypes
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
from sparring.lab.registry import task
from sparring.lab.runs import environment
from sparring.lab.runs.files import read_json
from sparring.lab.runs.folder import read_figures, read_metrics
from sparring.lab.runs.run import execute, prepare

MODES = {"count": 0, "before": 1, "after": 2, "half": 3, "full": 4}
shim = ctypes.CDLL(None)


def outcome(folder: Path) -> str:
    """A digest of everything that must not depend on what happened on the way, the names of the files included."""
    times = ("seconds_per_step",)
    parts: list[Any] = [sorted(path.name for path in folder.iterdir())]
    parts += [hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.safetensors")]
    parts += [{k: v for k, v in line.items() if k not in times} for line in read_metrics(folder, tail=False)]
    parts += [read_figures(folder)]
    parts += [{k: v for k, v in read_json(folder / "result.json").items() if k not in times}]
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


def main() -> None:
    asked = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    setting = task(asked["task"]).setting(asked["method"], overrides=asked["overrides"])
    about = environment.describe()
    environment.describe = lambda: about  # asks git, which is not what is tested
    prepare(setting)  # imports what the children will need, once
    root = Path(tempfile.mkdtemp(prefix="sparring-chaos-"))
    path = root / "run"

    def armed(at: int, mode: str) -> Callable[[], Any]:
        def work() -> Any:
            shim.chaos_arm(at, MODES[mode], str(path).encode())
            try:
                execute(setting, path, "", 0.0)
            except RunError as error:
                return str(error)
            return shim.chaos_count()

        return work

    def plainly() -> str:
        execute(setting, path, "", 0.0)
        return outcome(path)

    try:
        _, count = in_child(armed(0, "count"))
        assert isinstance(count, int), count
        _, wanted = in_child(plainly)
        done, wrong = 0, []
        for at in range(1, count + 1, asked.get("every", 1)):
            for mode in asked["modes"]:
                shutil.rmtree(path, ignore_errors=True)
                number, said = in_child(armed(at, mode))
                fault = None
                if mode != "full" and number != signal.SIGKILL:
                    fault = f"was not killed: {said}"
                elif mode == "full" and not isinstance(said, int) and not honest(str(said)):
                    fault = said
                _, found = in_child(plainly)
                if found != wanted:
                    fault = f"ended differently: {found}"
                done += 1
                if fault:
                    wrong.append([at, mode, fault])
        print(json.dumps({"operations": count, "done": done, "identical": done - len(wrong), "wrong": wrong[:5]}))
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
