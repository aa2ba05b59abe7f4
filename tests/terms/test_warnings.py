"""A player that does not play says so, at the looks and nowhere else."""

import warnings
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sparring as sp
from sparring.terms.interaction import LOOKS

X, Y = torch.randn(8, 4, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 3


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def heard(objective: sp.Objective, calls: int = 12) -> dict[int, str]:
    """The warnings by training step."""
    found = {}
    for number in range(calls):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            objective(X, Y)
        if caught:
            (found[number],) = [str(warning.message) for warning in caught]
    return found


@dataclass(frozen=True)
class Lazy(sp.Player):
    """Leaves some of the examples alone, or tells how far it went."""

    left: int = 0
    went: float | None = None

    def respond(self, game: sp.Game) -> sp.Response:
        notes: dict[str, Any] = {} if self.went is None else {"moved": lambda: self.went}
        return sp.Response([torch.full_like(s.value, 0.1) for s in game.slots], torch.arange(8) < self.left, notes)


def lazy(**how: Any) -> sp.Objective:
    return sp.Objective(network(), sp.cross_entropy, sp.Term(sp.Output("0"), Lazy(**how), sp.kl))


def test_more_than_half_left_alone() -> None:
    said = heard(lazy(left=5))
    assert list(said) == [1, 10]
    assert set(said) <= set(LOOKS)
    assert "lazy: most examples were left unperturbed" in said[1]
    assert heard(lazy(left=4)) == {}, "half of them is not most"


@pytest.mark.parametrize(("went", "said"), [(9e-4, [1, 10]), (1e-3, []), (1.0, [])])
def test_hardly_from_its_start(went: float, said: list[int]) -> None:
    found = heard(lazy(went=went))
    assert list(found) == said
    assert all("lazy: the player moved by 9.0e-04 of its radius" in text for text in found.values())


def test_what_left_examples_alone_is_said_rather_than_how_far_the_rest_went() -> None:
    assert "most examples" in heard(lazy(left=8, went=0.0))[1]


def test_the_published_follower_is_told_that_it_stands_still() -> None:
    """SALT at the paper's step size and start, raw gradients: the ball never binds."""
    objective = sp.recipes.salt(network(), sp.cross_entropy, "0", update="raw", step_size=1e-5, start=1e-3)
    assert "the ball never binds" in heard(objective, 2)[1]


class Reader(nn.Module):
    """One attention layer over a few words."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))


def test_scores_that_rounding_leaves_alone_are_not_left_alone_silently() -> None:
    """float32 and a start of 1e-5: the divergence is below rounding, most gradients are exact zeros."""
    torch.manual_seed(0)
    model = Reader()
    with torch.no_grad():
        model.head.weight.mul_(1e-3)
    words = torch.randn(16, 5, 8)
    objective = sp.recipes.salt(model, sp.cross_entropy, sp.Scores(), start=1e-5)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            objective(words, torch.arange(16) % 3)
    assert objective.diagnostics["salt/unperturbed"] > 8, "the scene must be one where rounding wins"
    assert any("most examples were left unperturbed" in str(warning.message) for warning in caught)
