"""A box is part of the ball: perturbed values stay inside both, to the last bit, at the nearest point."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor

import sparring as sp
from sparring.balls import Box

KINDS = pytest.mark.parametrize("kind", [sp.L2, sp.Linf])
BOXES: list[Any] = [
    (0, 1),
    (None, 1),
    (0, None),
    (-2.1179, 2.64),
    ((0.0, -1.5, 0.2), (1.0, 0.7, 0.3)),
    ((-1, -2, -3), 9.3),
]


@st.composite
def scenes(draw: st.DrawFn, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Any, float]:
    """Clean values in a box (many of them on its edges), perturbations of any size, the box, a radius."""
    box = draw(st.sampled_from(BOXES))
    shape = draw(st.sampled_from([(2, 3), (4, 3, 2), (2, 3, 4, 3), (1, 3, 1, 1)]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    low, high = (_shaped(side, len(shape), default) for side, default in zip(box, (-4.0, 4.0), strict=True))
    share = torch.rand(shape, generator=generator, dtype=torch.float64)
    share = torch.where(share < 0.2, 0.0, torch.where(share > 0.8, 1.0, share))
    around = (low + share * (high - low)).to(dtype).clamp(low.to(dtype), high.to(dtype))
    x = torch.randn(shape, generator=generator, dtype=torch.float64) * 10 ** draw(st.floats(-3, 3))
    return x.to(dtype), around, box, draw(st.floats(1e-3, 5.0))


def _shaped(side: Any, dims: int, default: float) -> Tensor:
    limit = torch.as_tensor(default if side is None else side, dtype=torch.float64)
    return limit if limit.dim() == 0 else limit.view(-1, *(1,) * (dims - 2))


def assert_inside(ball: Any, delta: Tensor, around: Tensor, box: Any, radius: float) -> None:
    moved = around + delta
    low, high = (_shaped(side, around.dim(), d).to(around.dtype) for side, d in zip(box, (-1e9, 1e9), strict=True))
    assert bool((moved >= low).all())  # exactly: no tolerance
    assert bool((moved <= high).all())
    assert bool((ball.norm(delta) <= radius * (1 + 1e-5)).all())


@KINDS
@given(scene=scenes())
@settings(max_examples=150, deadline=None)
def test_everything_a_ball_hands_out_is_inside_the_ball_and_exactly_inside_the_box(kind: Any, scene: Any) -> None:
    x, around, box, radius = scene
    ball = kind(radius, box=box)
    projected = ball.project(x, around=around)
    for delta in (
        projected,
        ball.sample(x, around=around),
        ball.interior(x, around=around),
        ball.leap(x, around=around),
        ball.project(ball.in_box(x, around=around), around=around),
    ):
        assert_inside(ball, delta, around, box, radius)
    torch.testing.assert_close(ball.project(projected, around=around), projected)
    assert bool((ball.project(torch.zeros_like(x), around=around) == 0).all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@given(scene=scenes())
@settings(max_examples=40, deadline=None)
def test_values_of_low_precision_stay_inside_after_the_sum_is_rounded(dtype: torch.dtype, scene: Any) -> None:
    x, around, box, radius = scene
    low, high = (_shaped(side, around.dim(), d).to(dtype) for side, d in zip(box, (-1e4, 1e4), strict=True))
    around = around.to(dtype).clamp(low, high)
    for kind in (sp.L2, sp.Linf):
        delta = kind(radius, box=box).project(x, around=around)  # players compute in float32
        moved = around + delta.to(dtype)
        assert bool((moved >= low).all() and (moved <= high).all())


def nearest_by_bisection(x: np.ndarray, lower: np.ndarray, upper: np.ndarray, radius: float) -> np.ndarray:
    """Oracle: the multiplier of the constraint |d| <= radius, bisected."""
    if np.linalg.norm(np.clip(x, lower, upper)) <= radius:
        return np.clip(x, lower, upper)
    small, large = 0.0, 1.0
    for _ in range(200):
        middle = (small + large) / 2
        small, large = (
            (middle, large) if np.linalg.norm(np.clip(middle * x, lower, upper)) <= radius else (small, middle)
        )
    return np.clip(small * x, lower, upper)


@given(scene=scenes(torch.float64))
@settings(max_examples=100, deadline=None)
def test_l2_and_box_give_the_nearest_point_of_both(scene: Any) -> None:
    x, around, box, radius = scene
    found = sp.L2(radius, box=box).project(x, around=around)
    lower, upper = Box(*box).room(around)
    for i in range(len(x)):
        sides = [
            np.full(x[i].numel(), end) if s is None else s[i].flatten().numpy()
            for s, end in ((lower, -1e9), (upper, 1e9))
        ]
        expected = nearest_by_bisection(x[i].flatten().numpy(), *sides, radius)
        np.testing.assert_allclose(found[i].flatten().numpy(), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_l2_and_box_against_a_general_solver(seed: int) -> None:
    """A second oracle that knows nothing of how the solution looks."""
    torch.manual_seed(seed)
    around, x, radius = torch.rand(1, 6).double(), torch.randn(1, 6).double(), 0.5
    found = sp.L2(radius, box=(0, 1)).project(x, around=around)[0].numpy()
    start, target = np.zeros(6), x[0].numpy()
    limits = [(-a, 1 - a) for a in around[0].tolist()]
    ball = {"type": "ineq", "fun": lambda d: radius**2 - d @ d, "jac": lambda d: -2 * d}
    solved = minimize(
        lambda d: (d - target) @ (d - target), start, jac=lambda d: 2 * (d - target), bounds=limits, constraints=[ball],
        method="SLSQP", options={"ftol": 1e-14, "maxiter": 500},
    )  # fmt: skip
    np.testing.assert_allclose(found, solved.x, atol=1e-5)


@KINDS
@given(scene=scenes(torch.float64))
@settings(max_examples=40, deadline=None)
def test_projections_differentiate(kind: Any, scene: Any) -> None:
    """Against finite differences; kinks have measure zero, but data on the edge of the box has them at x = 0 only."""
    x, around, box, radius = scene
    ball = kind(radius, box=box)
    weights = torch.randn_like(x)
    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad((weights * ball.project(leaf, around=around)).sum(), leaf)
    direction, h = torch.randn_like(x) * x.abs().clamp_min(1e-3), 1e-7

    def value(at: Tensor) -> float:
        return float((weights * ball.project(at, around=around)).sum())

    ahead, here, behind = value(x + h * direction), value(x), value(x - h * direction)
    scale = float((weights * direction).abs().sum())
    if abs(ahead - 2 * here + behind) / h < 1e-4 * scale:  # no kink between the two points
        assert (ahead - behind) / (2 * h) == pytest.approx(float((gradient * direction).sum()), abs=1e-4 * scale)


def test_the_projection_differentiates_twice_as_an_unrolled_step_needs() -> None:
    torch.manual_seed(0)
    around, x = torch.rand(3, 5).double(), (2 * torch.randn(3, 5).double()).requires_grad_()
    ball = sp.L2(0.6, box=(0, 1))
    assert torch.autograd.gradcheck(lambda v: ball.project(v, around=around), x)
    assert torch.autograd.gradgradcheck(lambda v: ball.project(v, around=around), x)
    zero = torch.zeros(2, 5, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(ball.project(zero, around=around[:2]).sum(), zero)
    assert bool(torch.isfinite(gradient).all())


def test_rows_are_projected_one_by_one_and_padding_may_hold_anything() -> None:
    torch.manual_seed(0)
    around, x = torch.rand(2, 3, 4), 3 * torch.randn(2, 3, 4)
    rows = sp.L2(0.5, rows=True, box=(0, 1)).project(x, around=around)
    each = sp.L2(0.5, box=(0, 1)).project(x.view(6, 4), around=around.view(6, 4)).view(2, 3, 4)
    torch.testing.assert_close(rows, each)
    valid = torch.tensor([[True, True, False], [True, False, False]])[..., None]
    padded = torch.where(valid, around, -100.0)
    for ball in (sp.L2(0.5, box=(0, 1)), sp.Linf(0.5, box=(0, 1))):
        for delta in (
            ball.project(x, valid, around=padded),
            ball.sample(x, valid, around=padded),
            ball.interior(x, valid, around=padded),
        ):
            assert bool((delta[~valid.expand_as(delta)] == 0).all())
            moved = (padded + delta)[valid.expand_as(delta)]
            assert bool((moved >= 0).all() and (moved <= 1).all())


def test_a_box_of_two_open_sides_is_none_and_changes_nothing() -> None:
    assert sp.Linf(0.3, box=(None, None)) == sp.Linf(0.3)
    x = torch.randn(3, 4)
    wide = sp.L2(0.3, box=(-1e6, 1e6))
    torch.testing.assert_close(wide.project(x, around=torch.zeros(3, 4)), sp.L2(0.3).project(x))


def test_boxes_compare_hash_and_print_whatever_they_were_written_with() -> None:
    one, two = sp.Linf(0.1, box=(torch.zeros(3), [1, 1, 1])), sp.Linf(0.1, box=((0.0, 0.0, 0.0), (1, 1, 1)))
    assert one == two
    assert hash(one) == hash(two)
    assert repr(sp.Linf(0.1, box=(0, 1))) == "Linf(radius=0.1, rows=False, box=(0, 1))"
    assert repr(sp.L2(1.0)) == "L2(radius=1.0, rows=False)"
    assert sp.L2(1.0, box=(0, 1)).with_radius(2.0) == sp.L2(2.0, box=(0, 1))


@KINDS
def test_what_does_not_fit_is_named(kind: Any) -> None:
    ball, x = kind(0.1, box=(0, 1)), torch.zeros(2, 3)
    for call in (ball.project, ball.sample, ball.interior, ball.leap):
        with pytest.raises(
            ValueError, match=r"clean values run from -0.5 to 3, outside box=\(0, 1\): give the ball the range"
        ):
            call(x, around=torch.tensor([[0.0, 0.5, 3.0], [1.0, -0.5, 0.0]]))
        with pytest.raises(ValueError, match="has a box: pass around="):
            call(x)
    with pytest.raises(ValueError, match=r"a box with 2 channels does not fit values of shape \(2, 3\)"):
        kind(0.1, box=((0, 0), 1)).project(x, around=x)
    with pytest.raises(ValueError, match="the lower limit is above the upper one"):
        kind(0.1, box=(1, 0))
    with pytest.raises(ValueError, match="2 lower and 3 upper limits"):
        kind(0.1, box=((0, 0), (1, 1, 1)))
    with pytest.raises(ValueError, match="not a number"):
        kind(0.1, box=(float("nan"), 1))
    with pytest.raises(TypeError, match=r"box=1 is not a pair; write box=\(low, high\)"):
        kind(0.1, box=1)
    with pytest.raises(TypeError, match="a side of a box is a number, one number per channel, or None"):
        kind(0.1, box=("0", 1))


def test_data_that_is_outside_by_rounding_only_is_on_the_edge() -> None:
    low = [(0 - mean) / std for mean, std in ((0.485, 0.229), (0.456, 0.224))]
    around = (torch.zeros(4, 2, 3) - torch.tensor([0.485, 0.456])[:, None]) / torch.tensor([0.229, 0.224])[:, None]
    delta = sp.Linf(0.1, box=(low, None)).project(-torch.ones(4, 2, 3), around=around)
    assert bool((delta.abs() < 1e-6).all())
