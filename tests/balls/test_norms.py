"""Balls: projections, directions and samples against their definitions."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import sparring as sp

KINDS = pytest.mark.parametrize("kind", [sp.L2, sp.Linf])


def oracle_norm(kind: type, x: Tensor) -> float:
    return float(x.pow(2).sum().sqrt()) if kind is sp.L2 else float(x.abs().max())


@st.composite
def batches(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    shape = draw(st.sampled_from([(1, 1), (3, 4), (2, 5, 3), (4, 1, 2, 2)]))
    seed = draw(st.integers(0, 10_000))
    generator = torch.Generator().manual_seed(seed)
    scale = 10 ** draw(st.floats(-18, 6))
    valid = torch.rand(*shape[:2], *(1,) * (len(shape) - 2), generator=generator) < 0.7
    return torch.randn(*shape, generator=generator) * scale, valid


@KINDS
@given(batches(), st.floats(1e-6, 100.0))
def test_projection_is_inside_idempotent_and_zero_on_padding(
    kind: type, batch: tuple[Tensor, Tensor], radius: float
) -> None:
    x, valid = batch
    ball = kind(radius)
    inside = ball.project(x, valid)
    assert all(oracle_norm(kind, row) <= radius * (1 + 1e-5) for row in inside)
    assert bool((inside[~valid.expand_as(inside)] == 0).all())
    torch.testing.assert_close(ball.project(inside, valid), inside)
    for before, after, keep in zip(x, inside, valid, strict=True):
        before = torch.where(keep, before, 0.0)
        if oracle_norm(kind, before) <= radius * (1 - 1e-5):
            torch.testing.assert_close(after, before)


@KINDS
@given(batches())
def test_steepest_direction_has_unit_size_and_climbs_most(kind: type, batch: tuple[Tensor, Tensor]) -> None:
    gradient, valid = batch
    direction = kind(1.0).steepest(gradient, valid)
    for g, d, keep in zip(gradient, direction, valid, strict=True):
        g = torch.where(keep, g, 0.0).double()
        if float(g.abs().max()) == 0:
            assert bool((d == 0).all())
            continue
        assert oracle_norm(kind, d) == pytest.approx(1.0, abs=1e-5)
        best = g.norm() if kind is sp.L2 else g.abs().sum()  # the dual norm is the steepest possible rate
        assert float((g * d.double()).sum() / best) == pytest.approx(1.0, abs=1e-5)


@KINDS
def test_samples_lie_on_the_surface_and_interior_points_inside(kind: type) -> None:
    ball, like = kind(2.0), torch.zeros(50, 3, 4)
    valid = torch.ones(50, 3, 1, dtype=torch.bool)
    valid[:, 2] = False
    points = ball.sample(like, valid)
    assert torch.allclose(ball.norm(points), torch.full((50,), 2.0))
    assert bool((points[:, 2] == 0).all())
    inner = ball.interior(like, valid)
    assert bool((ball.norm(inner) <= 2.0).all())
    assert bool((inner[:, 2] == 0).all())
    assert float(inner.abs().max()) > 0


def test_samples_have_no_preferred_direction() -> None:
    points = sp.L2(1.0).sample(torch.zeros(40_000, 3))
    assert float(points.mean(0).abs().max()) < 0.02
    torch.testing.assert_close(points.T @ points / 40_000, torch.eye(3) / 3, atol=0.01, rtol=0)


def test_rows_have_balls_of_their_own() -> None:
    x = torch.tensor([[[3.0, 4.0], [0.0, 0.1]]])
    torch.testing.assert_close(sp.L2(1.0, rows=True).project(x), torch.tensor([[[0.6, 0.8], [0.0, 0.1]]]))
    torch.testing.assert_close(sp.L2(1.0, rows=True).normalise(x), torch.tensor([[[0.6, 0.8], [0.0, 1.0]]]))
    assert sp.L2(1.0, rows=True).norm(x).tolist() == [5.0]


@KINDS
def test_non_finite_rows_become_zero(kind: type) -> None:
    g = torch.tensor([[float("nan"), 1.0], [float("inf"), 1.0], [0.0, 0.0], [1.0, 2.0]])
    direction = kind(1.0).steepest(g)
    assert bool((direction[:3] == 0).all())
    assert bool((direction[3] != 0).all())


def test_normalise_and_project_differentiate() -> None:
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    for ball in (sp.L2(0.5), sp.L2(100.0)):
        assert torch.autograd.gradcheck(ball.normalise, x)
        assert torch.autograd.gradgradcheck(ball.project, x)
    zero = torch.zeros(2, 3, requires_grad=True)
    (gradient,) = torch.autograd.grad(sp.L2(1.0).normalise(zero).sum() + sp.L2(1.0).project(zero).sum(), zero)
    assert bool(torch.isfinite(gradient).all())


@KINDS
@pytest.mark.parametrize("radius", [-1.0, float("nan"), float("inf")])
def test_impossible_radii_are_refused(kind: type, radius: float) -> None:
    with pytest.raises(ValueError, match="finite radius >= 0"):
        kind(radius)


@pytest.mark.parametrize("draw", [sp.Linf(2.0).sample, sp.Linf(2.0).interior], ids=["surface", "inside"])
def test_random_points_of_a_cube_prefer_no_side(draw: Any) -> None:
    torch.manual_seed(0)
    points = draw(torch.zeros(4000, 3))
    assert float(points.abs().max()) <= 2 + 1e-6
    assert float(points.mean(0).abs().max()) < 0.15  # more than six standard errors


@pytest.mark.parametrize("shape", [(3,), (3, 1)])
def test_a_single_number_that_is_drawn_as_zero_is_no_nan(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]
) -> None:
    monkeypatch.setattr(torch, "randn_like", torch.zeros_like)
    assert torch.equal(sp.L2(0.5).sample(torch.ones(shape)), torch.zeros(shape))
    assert torch.equal(sp.L2(0.5, rows=True).sample(torch.ones(*shape, 1)), torch.zeros(*shape, 1))
