"""The ensemble tasks of the lab: every method takes a step, figures mean what they say, the real data fit."""

import os
from pathlib import Path

import pytest
import torch

pytest.importorskip("sklearn")

from sparring.lab.registry import task
from sparring.lab.tasks.ensembles import METHODS, Attacked, shifted, under_attack

SHARED = Path(os.environ.get("SPARRING_DATA", Path(__file__).parents[3] / "shared" / "data"))


@pytest.fixture(scope="module")
def digits():
    chosen = task("digits-ensemble")
    return chosen, chosen.load(chosen.setting("plain"))


@pytest.mark.parametrize("method", [method.name for method in METHODS])
def test_every_method_takes_a_step_that_reaches_every_member(method, digits):
    chosen, data = digits
    setting = chosen.setting(method, "tiny", overrides={"width": 16})
    torch.manual_seed(0)
    model = chosen.build(setting, data).train()
    objective = chosen.method(method).objective(model, setting, data)
    for loss in objective.steps(*data.train.batch(slice(0, 8))):
        loss.backward()
    norms = torch.stack([sum(p.grad.square().sum() for p in member.parameters()) for member in model.members])
    assert torch.isfinite(norms).all()
    assert (norms > 0).all()


def test_methods_start_from_the_same_networks(digits):
    chosen, data = digits
    models = []
    for method in ("plain", "lpd", "pdd-deg"):
        torch.manual_seed(0)
        models.append(chosen.build(chosen.setting(method), data))
    first = dict(models[0].named_parameters())
    for model in models[1:]:
        assert all(torch.equal(first[name], value) for name, value in model.named_parameters())


def test_attacks_only_lower_accuracy_and_only_the_test_split_is_attacked(digits):
    chosen, data = digits
    setting = chosen.setting("plain", "tiny", overrides={"width": 16, "attacked": 12, "margin_steps": 3})
    torch.manual_seed(0)
    model = chosen.build(setting, data).eval()
    with torch.no_grad():
        few = Attacked(data.test.inputs[:12], data.test.targets[:12])
        found = chosen.evaluate(model, few, setting)
        assert set(chosen.evaluate(model, data.validation, setting)) == {"accuracy", "ambiguity"}
        again = under_attack(model, few, setting)
    assert {name: found[name] for name in ("fgsm", "bim", "similarity_50")} == {
        name: again[name] for name in ("fgsm", "bim", "similarity_50")
    }
    for attack in ("fgsm", "bim", "pgd", "margin"):
        assert found[attack] <= found["accuracy"]
    assert found["smoothness_25"] <= found["smoothness_50"] <= found["smoothness_75"]


def test_shifted_images_are_windows_of_the_padded_one():
    torch.manual_seed(0)
    images = torch.rand(12, 2, 6, 7)
    moved, targets = shifted(images, torch.arange(12))
    assert torch.equal(targets, torch.arange(12))
    padded = torch.nn.functional.pad(images, (4, 4, 4, 4))
    mirrored = 0
    for before, after in zip(padded, moved):
        windows = [before[:, top : top + 6, left : left + 7] for top in range(9) for left in range(9)]
        straight = any(torch.equal(after, window) for window in windows)
        turned = any(torch.equal(after, window.flip(2)) for window in windows)
        assert straight or turned
        mirrored += turned and not straight
    assert 0 < mirrored < 12


def test_cifar_splits_do_not_overlap():
    if not (SHARED / "cifar10").is_dir():
        pytest.skip(f"no CIFAR-10 under {SHARED}; set SPARRING_DATA to a folder that holds cifar10/")
    chosen = task("cifar10-ensemble")
    data = chosen.load(chosen.setting("plain", "small", data=SHARED))
    assert (len(data.train), len(data.validation), len(data.test)) == (9000, 1000, 1000)
    assert data.train.inputs.shape[1:] == (3, 32, 32)
    assert 0 <= data.train.inputs.min() < data.train.inputs.max() <= 1
    counts = torch.bincount(torch.cat([data.train.targets, data.validation.targets]), minlength=10)
    assert counts.tolist() == [1005, 974, 1032, 1016, 999, 937, 1030, 1001, 1025, 981]
