"""Stages: made once, shared, never read half-done."""

import json
import multiprocessing
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import reading
from sparring.lab import registry
from sparring.lab.errors import Interrupted, LabError
from sparring.lab.runs import checkpoint, files, run
from sparring.lab.runs.folder import folder_of
from sparring.lab.runs.run import execute, prepare

PROCESSES = multiprocessing.get_context("fork")


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "tasks", registry.tasks)
    reading.register()


def tune(out: Path, method: str = "plain", seed: int = 0, watch=lambda session: None, **changes: object) -> Path:
    setting = reading.TUNE.setting(method, seed=seed, overrides=changes)
    path = folder_of(out, setting)
    execute(setting, path, checkpoint_every=0.0, watch=watch)
    return path


def stage_of(out: Path) -> Path:
    return out / "read/tiny/plain@epochs=3/seed-0"


def test_a_stage_is_trained_once_and_shared(tmp_path: Path) -> None:
    trained: list[str] = []

    def watch(session) -> None:
        trained.append(session.task.name)

    tune(tmp_path, watch=watch)
    assert trained.index("tune") == trained.count("read") > 0
    first = checkpoint.load(stage_of(tmp_path))["best"]
    trained.clear()
    for method, seed in (("fraternal", 0), ("plain", 1)):
        tune(tmp_path, method, seed, watch)
    assert set(trained) == {"tune"}
    session = prepare(reading.TUNE.setting("plain", seed=5), start=first)
    assert all(torch.equal(value, first[name]) for name, value in session.model.state_dict().items())


def test_a_run_may_start_without_its_stage(tmp_path: Path) -> None:
    tune(tmp_path, pretrained=False)
    assert not (tmp_path / "read").exists()


def test_a_run_outside_the_usual_layout_keeps_its_stage_inside(tmp_path: Path) -> None:
    execute(reading.TUNE.setting("plain"), tmp_path / "here")
    assert (tmp_path / "here/read/tiny/plain@epochs=3/seed-0/result.json").exists()


class Crash(Exception):
    """What a test throws into a run."""


def test_a_stage_cut_short_is_finished_before_it_is_used(tmp_path: Path) -> None:
    whole = tune(tmp_path / "whole")

    def crash(session) -> None:
        if session.task.name == "read" and session.progress.step == 30:
            raise Crash

    with pytest.raises(Crash):
        tune(tmp_path / "cut", watch=crash)
    assert not (stage_of(tmp_path / "cut") / "result.json").exists()
    cut = tune(tmp_path / "cut")
    ours, theirs = (next(path.glob("*.safetensors")).read_bytes() for path in (cut, whole))
    assert ours == theirs


def race(out: Path, seed: int, log: Path) -> None:
    torch.set_num_threads(1)
    reading.register()

    def watch(session) -> None:
        if session.task.name == "read":
            with open(log, "a") as file:
                file.write(f"{session.progress.step}\n")

    tune(out, seed=seed, watch=watch)


def test_two_processes_that_need_the_same_stage_train_it_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    workers = [PROCESSES.Process(target=race, args=(tmp_path, seed, log)) for seed in (0, 1)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    steps = [int(line) for line in log.read_text().split()]
    assert steps == list(range(1, len(steps) + 1))  # every step of the stage once, in order


def test_a_killed_owner_hands_the_stage_over(tmp_path: Path) -> None:
    log = tmp_path / "log"
    first = PROCESSES.Process(target=race, args=(tmp_path, 0, log))
    first.start()
    while not (log.exists() and len(log.read_text().split()) > 3):
        time.sleep(0.01)
    second = PROCESSES.Process(target=race, args=(tmp_path, 1, log))
    second.start()
    os.kill(first.pid, signal.SIGKILL)
    first.join()
    second.join()
    assert second.exitcode == 0
    assert json.loads((stage_of(tmp_path) / "result.json").read_text())["epochs"] == 3


def test_waiting_for_a_stage_can_be_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ctrl_c(seconds: float) -> None:
        """Pressed while it waits, when the run is sure to listen."""
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(run, "time", SimpleNamespace(**{**vars(time), "sleep": ctrl_c}))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are deaf to it
    try:
        with files.locked(stage_of(tmp_path)), pytest.raises(Interrupted, match="another process works on"):
            tune(tmp_path)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_stage_that_does_not_fit_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tune(tmp_path)
    monkeypatch.setattr(reading, "WORDS", 9)
    with pytest.raises(LabError, match="the stage has another vocabulary"):
        tune(tmp_path, seed=1)
