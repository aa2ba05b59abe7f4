"""Random states of the model's device, whatever it is: forked, put back, shared, and kept in checkpoints."""

import os

import pytest
import torch
from torch import nn

import sparring as sp
from accelerator.device import Device
from scenes import SCENES
from sparring.nn import randomness


def test_shared_noise_is_exact_with_a_generator_of_the_devices_own(pretend: Device) -> None:
    scene = SCENES["mlp"]
    model, *batch = scene.setup()
    model.to("pretend")
    x, y, _ = (None if t is None else t.to("pretend") for t in batch)
    site = sp.Output(scene.late)
    objective = sp.Objective(model, scene.loss, sp.Term(site, sp.Noise(sp.L2(1.0)), scene.penalty))
    step = objective.begin(x, y, None, objective.terms)
    step.begin()
    zeros = {site: [torch.zeros_like(slot.value) for slot in step.slots(site)]}
    for replay in (True, False):
        assert torch.equal(step.run(zeros, replay=replay).cpu(), step.outputs.cpu())
    fresh = randomness.fresh(step.devices)
    once, again = step.run(zeros, noise=fresh), step.run(zeros, noise=fresh)
    assert torch.equal(once.cpu(), again.cpu())
    assert not torch.equal(once.cpu(), step.outputs.cpu())


def test_a_model_that_moves_between_steps_shares_the_noise_of_its_new_device(pretend: Device) -> None:
    model = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 16), nn.Dropout(0.5), nn.Linear(16, 3))
    site = sp.Output("2")
    objective = sp.Objective(model, sp.cross_entropy, sp.Term(site, sp.Noise(sp.L2(1.0)), sp.kl))
    x, y = torch.randn(5, 4), torch.arange(5) % 3
    for device in ("cpu", "pretend", "pretend", "cpu"):
        model.to(device)
        step = objective.begin(x.to(device), y.to(device), None, objective.terms)
        step.begin()
        zeros = {site: [torch.zeros(5, 16, device=device)]}
        for replay in (True, False):
            assert torch.equal(step.run(zeros, replay=replay).cpu(), step.outputs.cpu()), device


def test_blocks_put_the_devices_generator_back(pretend: Device) -> None:
    before = pretend.get_rng_state()
    with randomness.put_back(torch.device("pretend", 0)):
        torch.rand(3, device="pretend")
        torch.rand(3)
        assert not torch.equal(pretend.get_rng_state(), before)
    assert torch.equal(pretend.get_rng_state(), before)


def test_an_audit_leaves_the_devices_generator_as_it_was(pretend: Device) -> None:
    net = nn.Linear(6, 3).to("pretend")
    x = torch.rand(8, 6, device="pretend")
    y = net(x).argmax(1)
    states = pretend.get_rng_state(), torch.get_rng_state()
    sp.metrics.audit(net, x, y, sp.Linf(0.1, box=(0, 1)), steps=2, restarts=1, queries=4, autoattack=False)
    assert torch.equal(pretend.get_rng_state(), states[0])
    assert torch.equal(torch.get_rng_state(), states[1])


def test_a_device_of_which_there_is_one_is_asked_without_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = [torch.zeros(4, dtype=torch.uint8)]
    monkeypatch.setattr(torch.mps, "get_rng_state", lambda: kept[0])
    monkeypatch.setattr(torch.mps, "set_rng_state", lambda state: kept.append(state))
    state = randomness.current((torch.device("mps"),))
    state.restore()
    assert kept[1] is kept[0]


def test_checkpoints_keep_the_devices_generator(pretend: Device) -> None:
    from sparring.lab.errors import RunError
    from sparring.lab.training.randomness import own_state, restore_own_state

    here = torch.device("pretend", 0)
    state = own_state(here)
    first = torch.rand(3, device=here)
    restore_own_state(state, here)
    assert torch.equal(first.cpu(), torch.rand(3, device=here).cpu())
    with pytest.raises(RunError, match="started on pretend and is resumed on cpu"):
        restore_own_state(state, torch.device("cpu"))
    with pytest.raises(RunError, match="started on cpu and is resumed on pretend"):
        restore_own_state(own_state(torch.device("cpu")), here)


def test_the_lab_takes_any_accelerator_for_its_device(pretend: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    from sparring.lab.cli.parse import choose_device
    from sparring.lab.errors import LabError
    from sparring.lab.training.devices import DEVICE, on_processor

    monkeypatch.setenv(DEVICE, "cpu")
    choose_device("pretend")
    assert os.environ[DEVICE] == "pretend"
    assert not on_processor()
    choose_device("pretend:0")
    with pytest.raises(LabError, match="pretend:1 is not here"):
        choose_device("pretend:1")
