"""The page on many processes: its commands run here, its code is code that runs, and its table is the tests' own."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ranked_training import table, why_apart
from ranks import free_port

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "distributed.md").read_text()
COMMANDS = [line[2:] for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
PROGRAMS = {
    "python": [sys.executable],
    "torchrun": [sys.executable, "-m", "torch.distributed.run"],
    "accelerate": [sys.executable, "-m", "accelerate.commands.accelerate_cli"],
    "sparring": [sys.executable, "-m", "sparring.lab.cli.main"],
}


@pytest.mark.long
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_runs(command: str, tmp_path: Path) -> None:
    port = str(free_port())
    text = command.replace("/shared", str(tmp_path)).replace("first-host:29400", f"localhost:{port}")
    program, *words = shlex.split(text)
    if program == "accelerate":
        words[1:1] = ["--main_process_port", port]
    hosts = 2 if "--nnodes" in words or "sweep" in words else 1  # the same command on each
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [*PROGRAMS[program], *words],
            cwd=ROOT,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for _ in range(hosts)
    ]
    said = [process.communicate(timeout=900)[0] for process in started]
    assert all(process.returncode == 0 for process in started), "\n".join(said)[-3000:]
    if "run" in words:
        assert len(list(tmp_path.rglob("result.json"))) == 1
    elif "sweep" in words:
        assert len(list(tmp_path.rglob("result.json"))) == 2
    else:
        assert "epoch 2: loss" in "".join(said)


def test_the_code_is_that_of_the_example() -> None:
    script = [line.strip() for line in (ROOT / "examples" / "with_torchrun.py").read_text().splitlines()]
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        assert {line.strip() for line in block.splitlines()} <= set(script)


def test_the_page_says_why_methods_stay_apart() -> None:
    for reason in {why_apart(name) for name in table()} - {""}:
        assert reason in PAGE
