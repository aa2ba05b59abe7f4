"""The opposite of another player's answer: the same derivative, the same promises."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sparring as sp
from sparring.players.reversed import Reversed

X, Y = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1)), torch.arange(5) % 3


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def value(model: nn.Module, **words: Any) -> Tensor:
    """The penalty at the opposite of a normalised step, from the same start each time."""
    player = Reversed(sp.PGD(sp.L2(0.5), start=0.1, step_size=0.3, **words))
    objective = sp.Objective(model, sp.cross_entropy, sp.Term(sp.Input(), player, sp.kl, weight=5.0))
    torch.manual_seed(3)
    return objective(X, Y)


def by_hand(model: nn.Module) -> Tensor:
    """The same in three lines; a function of the parameters as a whole."""
    torch.manual_seed(3)
    start = torch.randn_like(X) * 0.1
    start = start * (0.5 / start.norm(dim=1, keepdim=True)).clamp(max=1)
    start.requires_grad_()
    clean = model(X).log_softmax(-1)
    gap = (clean.exp() * (clean - model(X + start).log_softmax(-1))).sum()
    (slope,) = torch.autograd.grad(gap, start, create_graph=True)
    delta = start + 0.3 * slope / slope.norm(dim=1, keepdim=True)
    delta = -delta * (0.5 / delta.norm(dim=1, keepdim=True)).clamp(max=1)
    far = model(X + delta).log_softmax(-1)
    gap = (clean.exp() * (clean - far)).sum(-1).mean()
    return nn.functional.cross_entropy(model(X), Y) + 5 * gap


@pytest.mark.parametrize(("unroll", "exactness"), [("autograd", 1e-9), ("finite_difference", 1e-4)])
def test_the_leader_sees_through_a_reversed_ascent(unroll: Any, exactness: float) -> None:
    model = network()
    wanted = torch.autograd.grad(by_hand(model), list(model.parameters()))
    found = torch.autograd.grad(value(model, unroll=unroll), list(model.parameters()))
    constant = torch.autograd.grad(value(model), list(model.parameters()))
    flat, exact, without = (torch.cat([g.flatten() for g in part]) for part in (found, wanted, constant))
    assert float((flat - exact).norm() / exact.norm()) < exactness
    assert float((without - exact).norm() / exact.norm()) > 0.01, "the derivative through the ascent matters here"


def test_finite_differences_of_a_reversed_ascent_are_refused_under_autocast() -> None:
    model = network().float()
    term = sp.Term(sp.Input(), Reversed(sp.PGD(sp.L2(0.5), unroll="finite_difference")), sp.kl)
    objective = sp.Objective(model, sp.cross_entropy, term)
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        pytest.raises(ValueError, match=r'Reversed.*use unroll="autograd"'),
    ):
        objective(X.float(), Y)


def test_a_reversed_answer_stays_in_the_box(steps: list[Any]) -> None:
    x = torch.full((5, 4), 0.1, dtype=torch.float64)
    term = sp.Term(sp.Input(), Reversed(sp.PGD(sp.Linf(0.5, box=(0, 1)), start=0.1)), sp.kl)
    sp.Objective(network(), sp.cross_entropy, term)(x, Y)
    moved = steps[0].last.slots[sp.Input()][0].placed + x
    assert 0 <= float(moved.min()) < float(moved.max()) <= 1
