"""A run of the lab on the pretended accelerator."""

from pathlib import Path

import pytest
import torch
from accelerate.state import AcceleratorState, GradientState, PartialState

from accelerator.device import Device
from sparring.lab.registry import task
from sparring.lab.runs.run import execute
from sparring.lab.training.devices import DEVICE


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
