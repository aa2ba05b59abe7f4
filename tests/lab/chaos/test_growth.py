"""Long runs: memory and file handles do not grow, and two threads with two models equal one thread."""

import gc
import os
import resource
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import sparring as sp
from sparring.lab.registry import task
from sparring.lab.runs.folder import read_metrics
from sparring.lab.runs.run import execute

STEPS = 10_000


def handles() -> int:
    return len(os.listdir("/proc/self/fd"))


def resident() -> int:
    """Kilobytes of memory in use now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() // 1024


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))


RECIPES: dict[str, Callable[[nn.Module], sp.Objective]] = {
    "vat": lambda model: sp.recipes.vat(model, sp.cross_entropy, at="0", ball=sp.L2(0.5)),
    "adversarial_training": lambda model: sp.recipes.adversarial_training(
        model, sp.cross_entropy, at="0", ball=sp.L2(0.5)
    ),
    "salt": lambda model: sp.recipes.salt(model, sp.cross_entropy, at="0", ball=sp.L2(0.5)),
    "smart": lambda model: sp.recipes.smart(model, sp.cross_entropy, at="0", ball=sp.L2(0.5)),
    "free_lb": lambda model: sp.recipes.free_lb(model, sp.cross_entropy, at="0", ball=sp.L2(0.5)),
    "r_drop": lambda model: sp.recipes.r_drop(model, sp.cross_entropy),
}


def train(name: str, steps: int, noted: Callable[[int], None] = lambda step: None) -> nn.Module:
    model = network()
    objective = RECIPES[name](model)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    draw = torch.Generator().manual_seed(1)
    for step in range(steps):
        inputs, targets = torch.randn(4, 6, generator=draw), torch.randint(3, (4,), generator=draw)
        for loss in objective.steps(inputs, targets):
            loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        noted(step)
    return model


@pytest.mark.long
@pytest.mark.chaos
@pytest.mark.parametrize("name", RECIPES)
def test_ten_thousand_steps_need_no_more_memory_than_a_thousand(name: str) -> None:
    seen: dict[int, tuple[int, int, int]] = {}

    def note(step: int) -> None:
        if step in (1000, STEPS - 1):
            gc.collect()
            seen[step] = (resident(), handles(), len(gc.get_objects()))

    train(name, STEPS, note)
    early, late = seen[1000], seen[STEPS - 1]
    print(name, {"megabytes": (late[0] - early[0]) / 1024, "objects": late[2] - early[2]})
    assert late[0] - early[0] < 8 * 1024
    assert late[1] == early[1]
    assert late[2] - early[2] < 200


@pytest.mark.long
@pytest.mark.chaos
def test_a_thousand_epochs_need_no_more_memory_than_a_hundred(tmp_path: Path) -> None:
    setting = task("sequential-digits").setting("plain", overrides={"epochs": 1000, "hidden": 4, "batch": 1000})
    seen: dict[int, tuple[int, int]] = {}

    def note(session) -> None:
        if session.progress.epoch in (100, 999):
            gc.collect()
            seen.setdefault(session.progress.epoch, (resident(), handles()))

    execute(setting, tmp_path, "", 1.0, note)
    assert len(read_metrics(tmp_path, tail=False)) == 1000
    assert seen[999][0] - seen[100][0] < 16 * 1024
    assert seen[999][1] == seen[100][1]


def pgd(model: nn.Module, **options: object) -> sp.Objective:
    """Three steps against the supervised loss, from zero: nothing random."""
    player = sp.PGD(sp.L2(0.5), steps=3, start=0.0, **options)
    return sp.Objective(model, sp.cross_entropy, sp.Term(sp.Output("0"), player))


SURE: dict[str, Callable[[nn.Module], sp.Objective]] = {
    "adversarial_training": RECIPES["adversarial_training"],
    "pgd": pgd,
    "unrolled": lambda model: pgd(model, unroll="autograd"),
}


@pytest.mark.parametrize("name", SURE)
def test_two_threads_with_two_models_equal_one(name: str) -> None:
    models = [network() for _ in range(3)]  # made here: threads share the random state
    for number, model in enumerate(models):
        model[2].p = 0.0
        model[0].weight.data += number

    def work(model: nn.Module, result: list[torch.Tensor]) -> None:
        objective = SURE[name](model)
        inputs = torch.linspace(-1, 1, 24).view(4, 6)
        for step in range(50):
            for loss in objective.steps(inputs + step / 20, torch.tensor([0, 1, 2, 0])):
                loss.backward()
        result += [parameter.grad.clone() for parameter in model.parameters()]
        model.zero_grad()

    alone: list[list[torch.Tensor]] = [[], []]
    for model, result in zip(models, alone):
        work(model, result)
    together: list[list[torch.Tensor]] = [[], []]
    threads = [threading.Thread(target=work, args=pair) for pair in zip(models, together)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(a, b) for one, two in zip(alone, together) for a, b in zip(one, two, strict=True))
