"""A run of the lab on the pretended accelerator."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from torch import nn

import sparring as sp
from accelerator.device import Device, counting
from sparring.lab.errors import Diverged
from sparring.lab.registry import task
from sparring.lab.runs.run import execute
from sparring.lab.task import DEFAULTS, Data, Method, Setting, Split, Task
from sparring.lab.training.devices import DEVICE, brought
from sparring.lab.training.progress import READ_EVERY
from sparring.lab.training.train import Session, train


class Crash(Exception):
    """What the test throws into a run."""


@pytest.fixture
def chosen(pretend: Device, monkeypatch: pytest.MonkeyPatch):
    """`--device pretend`; accelerate remembers its device for the length of a process otherwise."""
    monkeypatch.setenv(DEVICE, "pretend")
    for state in (AcceleratorState, GradientState, PartialState):
        monkeypatch.setattr(state, "_shared_state", {})
    return pretend


@pytest.mark.long
def test_a_crash_and_a_restart_change_nothing(tmp_path: Path, chosen: Device) -> None:
    setting = task("sequential-digits").setting("vat", overrides={"epochs": 1, "hidden": 8})
    execute(setting, tmp_path / "whole")

    def crash(session) -> None:
        assert next(session.model.parameters()).device.type == "pretend"
        if session.progress.step == 3:
            raise Crash

    with pytest.raises(Crash):
        execute(setting, tmp_path / "crashed", checkpoint_every=0.0, watch=crash)
    torch.rand(5, device="pretend")  # the generator has moved on meanwhile
    execute(setting, tmp_path / "crashed")
    weights = [next((tmp_path / name).glob("*.safetensors")).read_bytes() for name in ("whole", "crashed")]
    assert weights[0] == weights[1]


def session(method: str, **values: Any) -> Session:
    """Three linear layers on the device, 25 batches of four an epoch."""
    values = {**DEFAULTS, "epochs": 1, "batch": 4, "lr": 0.01, "clip": 1.0, **values}
    setting = Setting("toy", method, "tiny", 0, None, values)
    torch.manual_seed(0)
    x, y = torch.randn(100, 6), torch.arange(100) % 3
    accelerator = Accelerator()
    data = brought(Data(train=Split(x, y), validation=Split(x, y)), accelerator.device)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).to(accelerator.device)
    objective = {
        "vat": lambda: sp.recipes.vat(model, sp.cross_entropy, "0", ball=sp.L2(0.5)),
        "free": lambda: sp.recipes.free_at(model, sp.cross_entropy, "0", ball=sp.L2(0.5)),
        "diverging": lambda: sp.Objective(model, lambda o, t: sp.cross_entropy(o, t) / (objective.number < 9)),
    }[method]()

    def evaluate(model: nn.Module, split: Split, setting: Setting) -> dict[str, float]:
        return {"loss": float(nn.functional.cross_entropy(model(split.inputs), split.targets))}

    methods = (Method("plain", "", lambda model, setting, data: objective),)
    toy = Task("toy", "", "loss", "lower", {}, methods, lambda s: data, lambda s, d: model, evaluate)
    return Session(toy, setting, data, model, objective, accelerator)


@pytest.mark.parametrize("method", ["vat", "free"])
def test_the_loop_waits_for_the_device_once_in_many_steps(chosen: Device, method: str) -> None:
    run, ends, records = session(method), [0], list[Any]()
    with counting() as count:
        train(run, lambda: ends.append(len(count.waits)), records.append)
    waits = [after - before for before, after in pairwise(ends)]
    silent = [k for k in range(2, 25) if k % READ_EVERY not in (0, READ_EVERY - 1)]  # the first two learn what there is
    assert {k: count.waits[ends[k] : ends[k + 1]] for k in silent if waits[k]} == {}
    assert len(records[-1]["losses"]) == 25
    assert all(loss == loss for loss in records[-1]["losses"])


def test_a_loss_that_is_no_number_is_named_late_and_before_anything_is_kept(chosen: Device) -> None:
    run = session("diverging")
    with pytest.raises(Diverged, match="the loss is inf at epoch 1, batch 10"):
        train(run)
    assert 10 < run.progress.batch <= READ_EVERY
    run = session("diverging")
    saved = []

    def save() -> None:
        if run.progress.batch == 12:
            saved.append(run.state())

    with pytest.raises(Diverged, match="batch 10"):
        train(run, save)
    assert not saved
