"""TRADES, MART and adversarial weight perturbation against their authors' formulas written out by hand."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import sparring as sp
from sparring import recipes
from sparring.passes.one import Pass


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 4)).double()


def data() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.rand(6, 5, dtype=torch.float64), torch.arange(6) % 4


@pytest.fixture
def placed(monkeypatch: pytest.MonkeyPatch) -> list[Pass]:
    """Every pass that ran, with what was placed in it."""
    seen: list[Pass] = []
    run = Pass.run
    monkeypatch.setattr(Pass, "run", lambda self, *a, **k: (seen.append(self), run(self, *a, **k))[1])
    return seen


def test_trades_is_the_published_loss_at_its_point(placed: list[Pass]) -> None:
    model, (x, y) = network(), data()
    objective = recipes.trades(model, sp.cross_entropy, ball=sp.Linf(0.1), steps=3, weight=6.0)
    loss = objective(x, y)
    delta = placed[-1].slots[sp.Input()][0].placed.detach()
    assert float(delta.abs().max()) == pytest.approx(0.1)
    clean, moved = model(x), model(x + delta)
    # The released loss: F.cross_entropy(model(x), y) + beta / B * KLDivLoss(sum)(log_softmax(model(x')), softmax(model(x)))
    expected = F.cross_entropy(clean, y) + 6.0 / 6 * F.kl_div(moved.log_softmax(1), clean.softmax(1), reduction="sum")
    torch.testing.assert_close(loss, expected)
    ours = torch.autograd.grad(loss, list(model.parameters()))
    theirs = torch.autograd.grad(expected, list(model.parameters()))
    torch.testing.assert_close(ours, theirs)


def test_trades_climbs_the_divergence_and_mart_the_loss(placed: list[Pass]) -> None:
    model, (x, y) = network(), data()
    start = torch.zeros_like(x).requires_grad_()
    (uphill,) = torch.autograd.grad(F.cross_entropy(model(x + start), y, reduction="sum"), start)
    recipes.mart(model, sp.cross_entropy, ball=sp.Linf(0.01), steps=1, step_size=0.01, start=0.0)(x, y)
    delta = placed[-1].slots[sp.Input()][0].placed.detach()
    torch.testing.assert_close(delta, 0.01 * uphill.sign())


def test_mart_is_the_published_loss_at_its_point(placed: list[Pass]) -> None:
    model, (x, y) = network(), data()
    loss = recipes.mart(model, sp.cross_entropy, ball=sp.Linf(0.1), steps=3, weight=5.0)(x, y)
    delta = placed[-1].slots[sp.Input()][0].placed.detach()
    clean, moved = model(x).softmax(1), model(x + delta).softmax(1)
    top = moved.argsort(1)
    rival = torch.where(top[:, -1] == y, top[:, -2], top[:, -1])
    rows = torch.arange(6)
    boosted = F.cross_entropy(model(x + delta), y) + F.nll_loss((1 - moved).log(), rival)
    divergence = (clean * (clean.log() - moved.log())).sum(1)
    expected = boosted + 5.0 * (divergence * (1 - clean[rows, y])).mean()
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-8)
    ours = torch.autograd.grad(loss, list(model.parameters()))
    theirs = torch.autograd.grad(expected, list(model.parameters()))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-8)


def test_weight_perturbation_by_hand(placed: list[Pass]) -> None:
    model, (x, y) = network(), data()
    objective = recipes.adversarial_weight_perturbation(
        model, sp.cross_entropy, ball=sp.Linf(0.1), steps=2, weight_ball=sp.L2(0.02)
    )
    loss = objective(x, y)
    delta = placed[-1].slots[sp.Input()][0].placed.detach()
    weights = {name: p for name, p in model.named_parameters() if p.dim() > 1}
    at = F.cross_entropy(model(x + delta), y, reduction="sum")
    gradients = torch.autograd.grad(at, list(weights.values()))
    worst: dict[str, Any] = dict(model.named_parameters())
    for (name, weight), g in zip(weights.items(), gradients, strict=True):  # eq. 10: gamma |w| g / |g|, layer by layer
        worst[name] = weight + 0.02 * weight.detach().norm() * g / g.norm()
    expected = F.cross_entropy(torch.func.functional_call(model, worst, (x + delta,)), y)
    torch.testing.assert_close(loss, expected)
    ours = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    theirs = torch.autograd.grad(expected, list(model.parameters()))
    torch.testing.assert_close(ours, theirs)
    assert float(loss.detach()) > float(F.cross_entropy(model(x + delta), y).detach())
    assert all(isinstance(p, nn.Parameter) for p in model[0].parameters()), "the parameters are back"


def test_weights_without_a_move_are_the_model_bit_for_bit() -> None:
    model, (x, _) = network(), data()
    assert torch.equal(sp.perturbed_call(model, {sp.Weights(): {}}, x), model(x))
    with pytest.raises(ValueError, match="one buffer"):
        sp.Weights().modules(nn.Sequential(nn.LSTM(3, 4)))
