"""Objectives travel between processes."""

import pickle

import torch
from torch import nn

import sparring as sp


def ramp(step: int) -> float:
    return min(1.0, step / 2)


def test_r_drop_with_a_ramp_can_be_pickled() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    objective = sp.recipes.r_drop(model, sp.cross_entropy, weight=ramp)
    x, y = torch.randn(5, 4), torch.arange(5) % 3
    objective(x, y)  # the first step has weight 0
    again = pickle.loads(pickle.dumps(objective))
    losses = []
    for one in (objective, again):
        torch.manual_seed(1)
        losses.append(one(x, y).detach())
        assert one.diagnostics["r_drop/weight"] == 0.25  # half of ramp(1)
    assert torch.equal(*losses)
