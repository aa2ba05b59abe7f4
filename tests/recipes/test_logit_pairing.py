"""Adversarial logit pairing against its formula written out by hand."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import sparring as sp


def test_it_is_the_published_loss_at_the_fast_gradient_point() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 4)).double()
    x, y = torch.rand(6, 5, dtype=torch.float64), torch.arange(6) % 4
    player = sp.FastGradient(sp.Linf(0.1))
    loss = sp.recipes.logit_pairing(model, sp.cross_entropy, by=player, weight=0.7)(x, y)
    found = torch.autograd.grad(loss, list(model.parameters()))

    look = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(F.cross_entropy(model(look), y), look)  # it climbs the loss, not the distance
    clean, moved = model(x), model(x + 0.1 * slope.sign())
    expected = (F.cross_entropy(clean, y) + F.cross_entropy(moved, y)) / 2
    expected = expected + 0.7 * (clean - moved).square().sum(1).mean()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-12)
    for mine, theirs in zip(found, torch.autograd.grad(expected, list(model.parameters()))):
        torch.testing.assert_close(mine, theirs)
