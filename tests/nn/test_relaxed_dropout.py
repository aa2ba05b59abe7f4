"""Concrete and Gaussian dropout: their distributions, their gradients, their caps."""

import math

import pytest
import torch
from torch import nn

import sparring as sp
from sparring.nn import BernoulliDropout, ConcreteDropout, GaussianDropout


@pytest.mark.parametrize("heat", [0.02, 0.1, 2 / 3])
def test_concrete_masks_are_as_soft_as_their_temperature_says(heat: float) -> None:
    """Share of masks strictly between .01 and .99, in closed form: logit u is logistic."""
    torch.manual_seed(0)
    soft = ConcreteDropout(1, p=0.3, temperature=heat).draw(torch.ones(20_000, 1)).detach() * 0.7
    width, centre = heat * math.log(99), math.log(0.3 / 0.7)
    expected = 1 / (1 + math.exp(centre - width)) - 1 / (1 + math.exp(centre + width))
    assert float(((soft > 0.01) & (soft < 0.99)).double().mean()) == pytest.approx(expected, abs=0.015)
    assert float((soft > 0.5).double().mean()) == pytest.approx(0.7, abs=0.015)  # exactly 1 - p at any temperature


def test_concrete_draw_is_its_formula() -> None:
    layer = ConcreteDropout(1, p=0.2, temperature=0.4)
    torch.manual_seed(5)
    mask = layer.draw(torch.ones(50, 1, dtype=torch.float32)).detach()
    torch.manual_seed(5)
    u = torch.rand(50, 1)
    logit = math.log(0.2 / 0.8)
    formula = 1 - torch.sigmoid((logit + u.log() - (1 - u).log()) / 0.4)
    torch.testing.assert_close(mask, formula / 0.8, atol=1e-5, rtol=1e-4)


def test_concrete_temperature_follows_the_input() -> None:
    layer = ConcreteDropout(1, p=0.3)
    for shape, heat in (((400, 1), 0.1), ((400, 1, 2, 2), 2 / 3)):
        torch.manual_seed(1)
        mask = layer.draw(torch.ones(shape))
        torch.manual_seed(1)
        assert torch.equal(mask, ConcreteDropout(1, p=0.3, temperature=heat).draw(torch.ones(shape)))


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_concrete_survives_extreme_uniforms(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = ConcreteDropout(2, p=0.999999)
    monkeypatch.setattr(torch, "rand", lambda *shape, **_: torch.full(shape[0], value))
    mask = layer.draw(torch.ones(3, 2))
    mask.sum().backward()
    assert bool(mask.isfinite().all())
    assert layer.p_logit.grad is not None
    assert bool(layer.p_logit.grad.isfinite().all())


def test_gaussian_noise_has_mean_one_and_its_variance() -> None:
    torch.manual_seed(0)
    noise = GaussianDropout(1, p=0.2).draw(torch.ones(40_000, 1))
    assert float(noise.mean()) == pytest.approx(1.0, abs=0.01)
    assert float(noise.var()) == pytest.approx(0.25, abs=0.01)


def test_gaussian_variance_is_capped_but_keeps_its_gradient() -> None:
    layer = GaussianDropout(1, p=0.5, learn=True)
    with torch.no_grad():
        layer.log_variance.fill_(3.0)
    assert float(layer.variance.detach()) == 1.0
    layer.variance.sum().backward()
    assert layer.log_variance.grad is not None
    assert float(layer.log_variance.grad) == 1.0  # so that the optimiser can come back below the cap


def test_fixed_gaussian_has_no_parameter_but_is_saved() -> None:
    assert list(GaussianDropout(2).parameters()) == []
    assert list(GaussianDropout(2).state_dict()) == ["log_variance"]


@pytest.mark.parametrize("layer", [ConcreteDropout(3), GaussianDropout(3, learn=True)], ids=["concrete", "gaussian"])
def test_pathwise_gradients_match_finite_differences(layer: nn.Module) -> None:
    layer = layer.double()
    (parameter,) = layer.parameters()
    x = torch.randn(5, 3, dtype=torch.float64)

    def loss() -> torch.Tensor:
        torch.manual_seed(0)
        return layer(x).square().sum()

    (gradient,) = torch.autograd.grad(loss(), parameter)
    with torch.no_grad():
        parameter.sub_(0.5)  # away from Gaussian dropout's cap
    (gradient,) = torch.autograd.grad(loss(), parameter)
    for k in range(3):
        with torch.no_grad():
            parameter[k] += 1e-6
            high = loss()
            parameter[k] -= 2e-6
            low = loss()
            parameter[k] += 1e-6
        assert float((high - low) / 2e-6) == pytest.approx(float(gradient[k]), rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("layer", [
    ConcreteDropout(2), GaussianDropout(2, learn=True), BernoulliDropout(2), BernoulliDropout(2, rescale=True)
], ids=["concrete", "gaussian", "bernoulli", "rescaled"])  # fmt: skip
@pytest.mark.parametrize("end", [-300.0, 300.0])
def test_rates_that_ran_away_leave_everything_finite(layer: nn.Module, end: float) -> None:
    """An optimiser that nobody clamps may take a logit to where its rate is 0 or 1 in floating point."""
    (parameter,) = layer.parameters()
    with torch.no_grad():
        parameter.fill_(end)
    model = nn.Sequential(nn.Linear(2, 2), layer, nn.Linear(2, 2))
    terms = [sp.LearnedRates()] if isinstance(layer, BernoulliDropout) else []
    objective = sp.Objective(model, sp.cross_entropy, *terms)
    objective(torch.randn(5, 2), torch.zeros(5, dtype=torch.long)).backward()
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in model.parameters())
