"""Attacks on models of sixteen bits: inside the ball after rounding, and as strong as on the same model in single precision."""

import copy
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import sparring as sp
from sparring.attacks import BIM, FGSM, PGD, AutoAttack, RandomSearch, predictions
from sparring.attacks.precision import placed, returned
from sparring.metrics.certified import output_bounds

HALF = [torch.bfloat16, torch.float16]
BALLS = {"linf": sp.Linf(0.1, box=(0, 1)), "l2": sp.L2(1.0, box=(0, 1))}


def numbers(count: int) -> st.SearchStrategy[list[float]]:
    return st.lists(st.floats(-2, 2, width=32, allow_subnormal=False), min_size=count, max_size=count)


@given(numbers(6), numbers(6), st.sampled_from(HALF))
def test_rounding_goes_towards_the_inputs_and_no_further_than_it_must(
    inputs: list[float], moves: list[float], dtype: torch.dtype
) -> None:
    x, delta = torch.tensor(inputs).to(dtype), torch.tensor(moves)
    point = placed(x, delta)
    assert point.dtype == dtype
    further = torch.nextafter(point, x + torch.sign(delta).to(dtype) * 100)
    for clean, move, here, next_one in zip(x.tolist(), moves, point.tolist(), further.tolist()):
        # in exact arithmetic: between the clean value and the point asked for, and the next number would be beyond it
        wanted, reached = Fraction(move), Fraction(here) - Fraction(clean)
        assert abs(reached) <= abs(wanted)
        assert reached * wanted >= 0
        assert abs(Fraction(next_one) - Fraction(clean)) > abs(wanted) or move == 0


def test_gradients_pass_through_rounding() -> None:
    delta = torch.tensor([0.3, -0.2], requires_grad=True)
    placed(torch.tensor([1.0, 1.0]).bfloat16(), delta).float().mul(torch.tensor([2.0, 3.0])).sum().backward()
    assert delta.grad is not None
    assert delta.grad.tolist() == [2.0, 3.0]


def test_single_and_double_precision_are_added_as_ever() -> None:
    for dtype in (torch.float32, torch.float64):
        x, delta = torch.rand(50, dtype=dtype), torch.rand(50, dtype=dtype)
        assert torch.equal(placed(x, delta), x + delta)
        assert torch.equal(returned(x, delta), delta)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("ball", BALLS.values(), ids=BALLS)
@pytest.mark.parametrize("make", [FGSM, BIM, PGD, RandomSearch, AutoAttack])
def test_every_attack_stays_inside_and_breaks_what_it_breaks_in_single_precision(
    make: Any, ball: sp.Ball, dtype: torch.dtype, digits: Any, mlp: nn.Module
) -> None:
    if make is AutoAttack:
        pytest.importorskip("pyautoattack", reason="pyautoattack is not installed")
        attack = AutoAttack(ball, attacks=("apgd-ce",))
    else:
        attack = make(ball)
    x, y, net = digits.x[:100].to(dtype), digits.y[:100], copy.deepcopy(mlp).to(dtype)
    torch.manual_seed(0)
    found = attack(net, x, y)
    assert found.dtype == dtype
    moved = found.double() - x.double()
    assert (ball.norm(moved) <= ball.radius).all()
    assert ((found >= 0) & (found <= 1)).all()
    torch.manual_seed(0)
    twin = attack(mlp, x.float(), y)

    def kept(model: nn.Module, point: Tensor) -> float:
        return (predictions(model, point) == y).double().mean().item()

    assert kept(net, found) < kept(net, x) - 0.05
    assert abs(kept(net, found) - kept(mlp, twin)) <= 0.08


@pytest.mark.parametrize("dtype", HALF)
def test_an_audit_of_a_model_of_sixteen_bits(dtype: torch.dtype, digits: Any, mlp: nn.Module) -> None:
    x, y, ball = digits.x[:60], digits.y[:60], BALLS["linf"]
    short = {"steps": 5, "restarts": 1, "queries": 20, "autoattack": False}
    half = sp.metrics.audit(copy.deepcopy(mlp).to(dtype), x.to(dtype), y, ball, **short)
    single = sp.metrics.audit(mlp, x, y, ball, **short)
    assert half.verdict == single.verdict
    assert abs(half.lowest - single.lowest) <= 0.1


@pytest.mark.parametrize("dtype", HALF)
def test_a_certificate_of_sixteen_bits_is_refused(dtype: torch.dtype, digits: Any, mlp: nn.Module) -> None:
    net, x, y = copy.deepcopy(mlp).to(dtype), digits.x[:4].to(dtype), digits.y[:4]
    name = str(dtype).removeprefix("torch.")
    with pytest.raises(TypeError, match=f"inputs of {name}: a bound that is rounded to sixteen bits is none; certify"):
        sp.metrics.certify(net, x, y, sp.Linf(0.01))
    with pytest.raises(TypeError, match=f"inputs of {name}: a bound"):
        output_bounds(net, x, sp.Linf(0.01))
    assert sp.metrics.certify(net.float(), x.float(), y, sp.Linf(0.01)).margins.isfinite().all()
