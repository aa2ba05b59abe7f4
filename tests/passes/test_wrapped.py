"""Two processes: every way of asking an objective for losses gives the gradients of the whole batch."""

import copy
import os

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import sparring as sp

RECIPES = {
    "free_lb": lambda model: sp.recipes.free_lb(model, sp.cross_entropy, "0", ball=sp.L2(0.5), steps=2, start=0.0),
    "adversarial_training": lambda model: sp.recipes.adversarial_training(
        model, sp.cross_entropy, "0", ball=sp.L2(0.5)
    ),
    "plain": lambda model: sp.Objective(model, sp.cross_entropy),
}


def build() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(6, 4, generator=generator, dtype=torch.float64), torch.arange(6) % 3


def gradients(objective: sp.Objective, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    for loss in objective.steps(x, y):
        loss.backward()
    return [p.grad.clone() for p in objective.model.parameters()]


def rank(number: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=number, world_size=2)
    x, y = batch()
    rows = slice(0, 3) if number == 0 else slice(3, 6)
    found = {}
    for name, recipe in RECIPES.items():
        wrapped = DistributedDataParallel(recipe(build()))
        found[name] = gradients(wrapped.module, x[rows], y[rows])  # `steps` of the objective itself
    torch.save(found, os.path.join(folder, f"{number}.pt"))
    dist.destroy_process_group()


@pytest.mark.skipif(not dist.is_gloo_available(), reason="this torch has no gloo backend")
def test_steps_are_synchronised(tmp_path) -> None:
    mp.start_processes(rank, (str(tmp_path),), nprocs=2, start_method="spawn")
    parts = [torch.load(tmp_path / f"{number}.pt") for number in range(2)]
    for name, recipe in RECIPES.items():
        whole = gradients(recipe(build()), *batch())
        for part in parts:
            torch.testing.assert_close(part[name], whole, msg=f"{name} is not synchronised")


def test_outside_of_distributed_training_there_is_no_wrapper() -> None:
    objective = RECIPES["plain"](build())
    assert len(list(objective.steps(*batch()))) == 1
    assert copy.deepcopy(objective) is not objective
