"""A ball of one's own plays, attacks and is audited like ours."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sparring as sp
from sparring.metrics import audit, sweep
from sparring.players.player import Game
from sparring.sites.site import Slot


@dataclass(frozen=True)
class Weighted(sp.Ball):
    """Three things are said: the radius, the norm, the projection."""

    radius: float
    weights: tuple[float, ...] = (1.0, 2.0, 0.5, 1.0)

    def norm(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        return (sp.balls.masked(x, valid) * torch.tensor(self.weights, dtype=x.dtype)).flatten(1).norm(dim=1)

    def project(self, x: Tensor, valid: Tensor | None = None, *, around: Tensor | None = None) -> Tensor:
        share = (self.radius / self.norm(x, valid).clamp_min(1e-30)).clamp_max(1)
        return sp.balls.masked(x, valid) * share.view(-1, *(1,) * (x.dim() - 1))


class Everything(nn.Module):
    """Notes every input it sees."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net, self.seen = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)), list[Tensor]()

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x.detach().clone())
        return self.net(x)


@pytest.mark.parametrize(
    "player",
    [
        lambda ball: sp.Noise(ball),
        lambda ball: sp.FastGradient(ball),
        lambda ball: sp.PGD(ball, steps=3),
        lambda ball: sp.PGD(ball, steps=2, start="uniform", unroll="autograd"),
        lambda ball: sp.PGD(ball, steps=2, start="uniform", unroll="finite_difference"),
    ],
)
def test_every_player_stays_inside_and_the_last_step_is_taken(player: Any) -> None:
    model, ball = Everything(), Weighted(0.5)
    x, y = torch.rand(5, 4), torch.tensor([0, 1, 2, 0, 1])
    sp.Objective(model, sp.cross_entropy, sp.Term(sp.Input(), player(ball)))(x, y).backward()
    norms = torch.stack([ball.norm(seen - x) for seen in model.seen])
    assert bool((norms <= 0.5 * (1 + 1e-3)).all())  # finite differences look a little beside
    assert float(norms[-1].max()) > 0.1


def test_attacks_sweeps_and_audits_take_it() -> None:
    model, ball = Everything(), Weighted(0.8)
    x = torch.rand(20, 4)
    y = model(x).argmax(1)
    for attack in (sp.attacks.FGSM(ball), sp.attacks.PGD(ball), sp.attacks.RandomSearch(ball, queries=10)):
        found = attack(model, x, y)
        assert bool((ball.norm(found - x) <= 0.8 * (1 + 1e-5)).all())
    assert sweep(model, sp.attacks.PGD(ball), x, y, [0.0, 2.0]).plain[0] == 1.0
    result = audit(model, x, y, ball, steps=3, restarts=1, queries=5)
    assert result.usual < 1
    assert "Weighted" in str(result)
    with pytest.raises(ValueError, match="it knows L2 and Linf balls"):
        sp.attacks.AutoAttack(ball)


def test_what_is_not_a_ball_is_refused_with_the_object_to_write() -> None:
    class Loose:
        radius = 1.0

    for player in (sp.Noise, sp.FastGradient, sp.PGD):
        with pytest.raises(
            TypeError, match=r"\(ball=2\): a number does not say which norm; write ball=sp.L2\(2\) or ball=sp.Linf\(2\)"
        ):
            player(2)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"or a subclass of sp\.Ball"):
            player(Loose())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"or a subclass of sp\.Ball"):
        sp.PGD(sp.Flips(0.1))  # type: ignore[arg-type]


def test_masks_have_a_ball_of_their_own_kind() -> None:
    with pytest.raises(
        TypeError, match=r"GreedyFlip\(ball=0.03\): how many flips is an object; write ball=sp.Flips\(0.03\)"
    ):
        sp.GreedyFlip(0.03)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"write ball=sp.Flips\(share\)"):
        sp.GreedyFlip(sp.L2(1.0))  # type: ignore[arg-type]


def test_a_ball_that_is_no_dataclass_says_what_a_sweep_needs() -> None:
    class Handmade(Weighted):
        pass

    class Plain(sp.Ball):
        radius = 1.0

        def norm(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
            return x.flatten(1).norm(dim=1)

        def project(self, x: Tensor, valid: Tensor | None = None, *, around: Tensor | None = None) -> Tensor:
            return x

    assert Handmade(1.0).with_radius(2.0).radius == 2.0
    with pytest.raises(TypeError, match="Plain: make it a dataclass, or write with_radius"):
        Plain().with_radius(2.0)


@pytest.mark.parametrize("n", [1, 4])
def test_a_uniform_start_fills_a_ball_of_ones_own_evenly(n: int) -> None:
    """In n dimensions the share of the ball within a distance d is d^n: of uniform points it is uniform, 1/2 in the mean."""
    torch.manual_seed(0)
    ball = Weighted(2.0, (1.0,) * n)
    inside = (ball.norm(ball.interior(torch.zeros(4000, n))) / 2.0) ** n
    assert float(inside.max()) <= 1 + 1e-5
    assert float(inside.mean()) == pytest.approx(0.5, abs=0.03)  # six standard errors
    assert float(inside.var()) == pytest.approx(1 / 12, abs=0.01)


@dataclass(frozen=True, repr=False)
class Careless(sp.L2):
    """Made of ours, with a step that is NaN where there is no gradient, and samples whose length is not the radius."""

    def steepest(self, gradient: Tensor, valid: Tensor | None = None) -> Tensor:
        return gradient / gradient.norm(dim=1, keepdim=True)

    def sample(self, like: Tensor, valid: Tensor | None = None, *, around: Tensor | None = None) -> Tensor:
        return torch.full_like(like, self.radius**2)


def test_a_ball_made_of_ours_takes_its_own_steps() -> None:
    met: list[Tensor] = []

    class Deaf(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            met.append(input.detach())
            return super().forward(input * torch.tensor([[1.0], [0.0], [1.0]]))

    model, x, y = Deaf(4, 3), torch.randn(3, 4), torch.arange(3)
    objective = sp.recipes.adversarial_training(model, sp.cross_entropy, ball=Careless(0.5))
    assert objective(x, y).isfinite()
    name = objective.terms[0].name
    assert objective.diagnostics[f"{name}/unperturbed"] == 1
    met.clear()
    sp.recipes.vat(model, sp.cross_entropy, ball=Careless(0.5), start=0.1)(x, y)
    torch.testing.assert_close(met[1] - x, torch.full((3, 4), 0.5**2 * 0.1 / 0.5))


def test_a_radius_that_grows_from_zero_is_noticed() -> None:
    class Growing(sp.Ball):
        radius = 0.0

        def norm(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
            return sp.L2(1.0).norm(x, valid)

        def project(self, x: Tensor, valid: Tensor | None = None, *, around: Tensor | None = None) -> Tensor:
            return sp.L2(self.radius).project(x, valid)

    ball, x, y = Growing(), torch.randn(3, 4), torch.arange(3)
    term = sp.Term(sp.Input(), sp.FastGradient(ball), name="growing")
    objective = sp.Objective(nn.Linear(4, 3), sp.cross_entropy, term)
    for radius in (0.0, 0.5, 1.0, 0.0):
        ball.radius = radius
        objective(x, y)
        assert objective.diagnostics.get("growing/norm", 0.0) == pytest.approx(radius)


def test_an_example_with_one_broken_row_is_left_alone_as_a_whole() -> None:
    gradient = torch.tensor([[[1.0, 2.0], [3.0, 4.0]], [[1.0, 2.0], [torch.nan, 4.0]]])  # (B, rows, 2)

    def payoff(values, attached=False, clean=None):
        return (values[0] * gradient).flatten(1).sum(1)

    slot = Slot("input", torch.zeros(2, 2, 2))
    game = Game([slot], payoff, torch.zeros(2, 3), torch.zeros(2, 3), [], 2)
    response = sp.FastGradient(sp.L2(1.0, rows=True)).respond(game)
    assert response.values[0][1].eq(0).all()
    assert torch.allclose(response.values[0][0].norm(dim=-1), torch.ones(2))
    assert response.unperturbed.tolist() == [False, True]
