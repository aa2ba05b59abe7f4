"""No pass of training ever sees a value outside the box: every player, every recipe at the input, every probe."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sparring as sp

BALLS = {
    "linf": sp.Linf(0.3, box=(0, 1)),
    "l2": sp.L2(1.5, box=(0, 1)),
    "channels": sp.L2(2.0, box=((0, -1), (1.0, 0.25))),
}
PLAYERS: dict[str, Callable[[Any], Any]] = {
    "noise": lambda ball: sp.Noise(ball),
    "fast gradient": lambda ball: sp.FastGradient(ball),
    "power iteration, far probe": lambda ball: sp.FastGradient(ball, 10.0, 2),
    "normalised": lambda ball: sp.PGD(ball, steps=3),
    "uniform start": lambda ball: sp.PGD(ball, steps=2, start="uniform"),
    "raw": lambda ball: sp.PGD(ball, steps=2, step_size=50.0, start=0.5, update="raw"),
    "sign": lambda ball: sp.PGD(ball, steps=2, start=0.5, update="sign"),
    "adam": lambda ball: sp.PGD(ball, steps=3, step_size=0.3, update="adam"),
    "unrolled": lambda ball: sp.PGD(ball, steps=2, start=0.5, unroll="autograd"),
    "finite differences": lambda ball: sp.PGD(ball, steps=2, start=0.5, unroll="finite_difference"),
    "central differences": lambda ball: sp.PGD(ball, steps=2, start=0.5, unroll="finite_difference", central=True),
}


CASES = [
    pytest.param(player, penalty, id=f"{name}, {'loss' if penalty is None else 'kl'}")
    for name, player in PLAYERS.items()
    for penalty in (None, sp.kl)
    if penalty is None or name != "fast gradient"  # a divergence has no slope at the clean point
]


class Spy(nn.Module):
    """Notes every input it is given."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(2 * 9, 16), nn.Tanh(), nn.Linear(16, 3))
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x.detach().clone())
        return self.net(x)


def images(ball: Any, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Mostly black and white, as digits are; the second channel as dark as its box allows."""
    torch.manual_seed(1)
    share = (2 * torch.rand(6, 2, 3, 3, dtype=dtype) - 0.5).clamp(0, 1)
    low, high = (torch.as_tensor(side, dtype=dtype).view(-1, 1, 1) for side in (ball.box.low, ball.box.high))
    return (low + share * (high - low)).clamp(low, high), torch.tensor([0, 1, 2, 0, 1, 2])


def assert_all_inside(model: Spy, ball: Any, passes: int) -> None:
    low, high = (torch.as_tensor(side).view(-1, 1, 1) for side in (ball.box.low, ball.box.high))
    assert len(model.seen) >= passes
    for seen in model.seen:
        assert bool((seen >= low).all() and (seen <= high).all())


@pytest.mark.parametrize("ball", BALLS.values(), ids=BALLS)
@pytest.mark.parametrize(("player", "penalty"), CASES)
def test_every_pass_of_every_player_is_inside(player: Any, ball: Any, penalty: Any) -> None:
    by, model = player(ball), Spy()
    objective = sp.Objective(model, sp.cross_entropy, sp.Term(sp.Input(), by, penalty), measure_noise_every=1)
    x, y = images(ball)
    objective(x, y).backward()
    assert_all_inside(model, ball, 1 if isinstance(by, sp.Noise) else 2)
    moved = torch.stack([ball.norm(seen - x) for seen in model.seen])
    assert float(moved.max()) > 0.01  # and the player does move
    if not isinstance(by, sp.FastGradient):  # whose probe may lie beyond the ball
        assert bool((moved <= ball.radius * (1 + 2e-2)).all())  # finite differences look a little beside


@pytest.mark.parametrize("ball", BALLS.values(), ids=BALLS)
@pytest.mark.parametrize(
    "name", ["adversarial_training", "vat", "salt", "smart", "free_lb", "free_at", "trades", "mart"]
)
def test_every_recipe_at_the_input_is_inside_over_several_steps(name: str, ball: Any) -> None:
    model = Spy()
    # SMART's published step hardly leaves its start in a ball of this size.
    words = {"step_size": None} if name == "smart" else {}
    objective = getattr(sp.recipes, name)(model, sp.cross_entropy, ball=ball, **words)
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    x, y = images(ball)
    for shift in range(3):  # another order: a perturbation that is carried over meets other images
        for loss in objective.steps(x.roll(shift, 0), y.roll(shift, 0)):
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    assert_all_inside(model, ball, 3)


def test_finite_differences_at_the_edge_of_a_box_are_those_of_the_unrolled_graph() -> None:
    ball, found = sp.L2(1.5, box=(0, 1)), []
    x, y = images(ball, torch.float64)
    for unroll in ("autograd", "finite_difference"):
        model = Spy().double()
        player = sp.PGD(ball, steps=2, step_size=0.8, start=0.3, unroll=unroll)  # type: ignore[arg-type]
        torch.manual_seed(5)
        sp.Objective(model, sp.cross_entropy, sp.Term(sp.Input(), player, sp.kl))(x, y).backward()
        found.append(torch.cat([p.grad.flatten() for p in model.parameters()]))  # type: ignore[union-attr]
    plain = Spy().double()
    torch.manual_seed(5)
    sp.Objective(plain, sp.cross_entropy, sp.Term(sp.Input(), sp.PGD(ball, steps=2, step_size=0.8, start=0.3), sp.kl))(
        x, y
    ).backward()
    held = torch.cat([p.grad.flatten() for p in plain.parameters()])  # type: ignore[union-attr]
    assert float((found[0] - found[1]).norm()) < 1e-3 * float((found[0] - held).norm())


def test_inputs_outside_the_box_are_refused_in_training() -> None:
    objective = sp.recipes.adversarial_training(Spy(), sp.cross_entropy, ball=sp.Linf(0.3, box=(0, 1)))
    with pytest.raises(
        ValueError, match=r"run from .* to .*, outside box=\(0, 1\): give the ball the range that your data has"
    ):
        objective(3 * torch.randn(2, 2, 3, 3), torch.tensor([0, 1]))
