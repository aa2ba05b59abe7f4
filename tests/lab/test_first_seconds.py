"""The command line told to stop in its first seconds: one line, exit code 130, nothing left behind."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sparring.lab.cli import main as cli

RUN = ["run", "sequential-digits", "--set", "epochs=1", "--set", "hidden=16"]
COMPARE = ["compare", "sequential-digits", "--methods", "plain", "--seeds", "2", "--set", "epochs=1", "--cores", "2"]


def heard(process: int) -> bool:
    """Whether a process has a handler for SIGTERM of its own."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    caught = int(next(line.split()[1] for line in lines if line.startswith("SigCgt")), 16)
    return bool(caught >> (signal.SIGTERM - 1) & 1)


def stopped(arguments: list[str], where: Path, number: int, after: float) -> tuple[int, str]:
    """Send a signal to the command and its group, as a terminal does; the exit code and what was said."""
    command = [sys.executable, "-m", "sparring_command", *arguments]
    process = subprocess.Popen(command, cwd=where, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)  # fmt: skip
    while process.poll() is None and not heard(process.pid):  # a busy machine takes its time to start Python
        time.sleep(0.01)
    time.sleep(after)
    if process.poll() is None:
        os.killpg(process.pid, number) if number == signal.SIGINT else os.kill(process.pid, number)
    _, said = process.communicate(timeout=120)
    return process.returncode, said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_no_traceback_while_modules_are_imported(tmp_path: Path, number: int) -> None:
    code, said = stopped(RUN, tmp_path, number, random.SystemRandom().uniform(0.0, 2.0))
    assert (code, "Traceback" in said) == (130, False), said
    assert said.count("\n") == 1


@pytest.mark.long
@pytest.mark.chaos
@pytest.mark.parametrize("arguments", [RUN, COMPARE], ids=["run", "compare"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_no_traceback_at_any_time(tmp_path: Path, arguments: list[str], number: int) -> None:
    for after in (0.3, 0.7, 1.5, 3, 5, 7, 9, 12, 15):
        code, said = stopped(arguments, tmp_path, number, after)
        assert code in (0, 130), (after, said)
        assert "Traceback" not in said, (after, said)


def test_a_setting_that_cannot_work_is_the_users_to_put_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    wrong = ["run", "sequential-digits", "--method", "adversarial_dropout", "--set", "hidden=8", "--set", "epochs=1"]
    assert cli.main(wrong) == 2
    said = capsys.readouterr().err
    assert "cannot be run with" in said
    assert "fault of sparring" not in said
    assert said.count("\n") == 1


def test_a_task_without_plain_takes_its_own_baseline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["run", "movielens", "--set", "epochs=1"]) == 0
    assert (tmp_path / "runs/movielens/tiny/vae-drop@epochs=1/seed-0/result.json").exists()
