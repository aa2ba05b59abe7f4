"""One look at the gradient, then a step of full radius."""

from dataclasses import dataclass

import torch

from ..balls import Ball, check_ball
from .player import Game, InBall, Response, only, slope, sound, working_copy


@dataclass(frozen=True)
class FastGradient(InBall):
    """The steepest step of full radius: fast gradient (sign) at the clean point, or VAT's power iteration.

    With `xi = 0` the gradient is taken at the clean point (FGSM, Miyato's adversarial training). A divergence has zero
    gradient there: with `xi > 0` it is taken at a random point at distance `xi`, `iterations` times, each along the direction
    found last (Miyato et al. 2018, Algorithm 1).

    >>> import sparring as sp
    >>> sp.FastGradient(sp.L2(5.0), xi=0.1)
    FastGradient(ball=L2(radius=5.0, rows=False), xi=0.1, iterations=1)

    Args:
        ball: the radius and the norm of the step.
        xi: distance of the point where the gradient is taken.
        iterations: power iterations.
    """

    ball: Ball
    xi: float = 0.0
    iterations: int = 1

    def __post_init__(self) -> None:
        check_ball(self.ball, "FastGradient")
        if self.xi < 0:
            raise ValueError(f"FastGradient(xi={self.xi}): a distance is >= 0")
        if self.iterations < 1:
            raise ValueError(f"FastGradient(iterations={self.iterations}): at least one look at the gradient")

    @property
    def starts_at_clean(self) -> bool:
        return self.xi == 0

    def respond(self, game: Game) -> Response:
        ball, slots = self.ball, game.slots
        points = [working_copy(slot) for slot in slots]
        if self.xi:
            points = [ball.sample(p, slot.valid, around=slot.value) for p, slot in zip(points, slots, strict=True)]
            points = [p * (self.xi / ball.radius) for p in points]
        good = torch.ones(game.batch, dtype=torch.bool, device=game.clean.device)
        for _ in range(self.iterations):
            points = [
                ball.in_box(p, slot.valid, around=slot.value).requires_grad_()
                for p, slot in zip(points, slots, strict=True)
            ]
            gradients = slope(game.payoff(points), points)
            good = good & sound(gradients, slots)
            steps = [ball.leap(g, slot.valid, around=slot.value) for g, slot in zip(gradients, slots, strict=True)]
            points = [step * (self.xi / ball.radius) for step in steps]
        return Response([only(good, step) for step in steps], unperturbed=~good, backward_passes=self.iterations)
