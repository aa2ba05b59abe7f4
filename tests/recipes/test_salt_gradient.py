"""The recipe `salt` differentiates through its follower: its gradient against finite differences of the whole game."""

import pytest
import torch
from torch import nn

import sparring as sp

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.arange(6) % 3


def game(**options) -> tuple[nn.Module, sp.Objective]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    with torch.no_grad():
        model[2].weight.mul_(4)
    # A raw step that stays inside the ball: the follower's answer is a smooth function of the parameters.
    objective = sp.recipes.salt(
        model, sp.cross_entropy, ball=sp.L2(5.0), steps=2, start=0.3, update="raw", step_size=0.5, weight=3.0,
        detach_clean=False, **options,
    )  # fmt: skip
    return model, objective


def value(objective: sp.Objective) -> torch.Tensor:
    torch.manual_seed(1)
    return objective(X, Y)


def along(model: nn.Module, direction: list[torch.Tensor], size: float) -> None:
    with torch.no_grad():
        for parameter, change in zip(model.parameters(), direction):
            parameter.add_(size * change)


def slopes(**options) -> tuple[float, float]:
    """(what back-propagation says, what the game does) along one direction."""
    model, objective = game(**options)
    generator = torch.Generator().manual_seed(2)
    direction = [torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in model.parameters()]
    gradients = torch.autograd.grad(value(objective), list(model.parameters()))
    said = float(sum((g * d).sum() for g, d in zip(gradients, direction)))
    h = 1e-5
    along(model, direction, h)
    ahead = float(value(objective).detach())
    along(model, direction, -2 * h)
    return said, (ahead - float(value(objective).detach())) / (2 * h)


def test_the_default_is_the_derivative_of_the_game() -> None:
    said, done = slopes()
    assert said == pytest.approx(done, rel=1e-6)


def test_finite_differences_of_the_follower_come_close() -> None:
    said, done = slopes(unroll="finite_difference")
    assert said == pytest.approx(done, rel=1e-3)


def test_without_unrolling_the_derivative_is_another() -> None:
    said, done = slopes(unroll=False)
    assert abs(said - done) > 0.05 * abs(done), "the game must be one where the follower's dependence matters"


@pytest.mark.parametrize("unroll", ["autograd", "finite_difference"])
def test_training_with_a_detached_clean_side_learns(unroll) -> None:
    """With the follower's dependence on the clean side cut as well, the labelled loss rose tenfold in a hundred steps."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4))
    x, y = torch.randn(40, 8), torch.arange(40) % 4
    objective = sp.recipes.salt(model, sp.cross_entropy, ball=sp.L2(0.5), detach_clean=True, unroll=unroll)
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for _ in range(60):
        optimiser.zero_grad()
        objective(x, y).backward()
        optimiser.step()
        losses.append(objective.diagnostics["clean_loss"])
    assert max(losses) < 1.2 * losses[0]
    assert losses[-1] < 0.5 * losses[0]
