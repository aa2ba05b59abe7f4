"""One look at the gradient, then a step of full radius."""

from dataclasses import dataclass

from torch import Tensor

from ..balls import Ball, check_ball
from .player import Game, InBall, Response, lost, slope, without, working_copy


@dataclass(frozen=True)
class FastGradient(InBall):
    """The steepest step of full radius: fast gradient (sign) at the clean point, or VAT's power iteration.

    With `start = 0` the gradient is taken at the clean point (FGSM, Miyato's adversarial training). A divergence has zero
    gradient there: with `start > 0` it is taken at a random point at distance `start`, `steps` times, each along the direction
    found last (Miyato et al. 2018, Algorithm 1).

    >>> import sparring as sp
    >>> sp.FastGradient(sp.L2(5.0), start=0.1)
    FastGradient(ball=L2(radius=5.0, rows=False), start=0.1, steps=1)

    Args:
        ball: the radius and the norm of the step.
        start: distance of the point where the gradient is taken.
        steps: power iterations.
    """

    ball: Ball
    start: float = 0.0
    steps: int = 1

    def __post_init__(self) -> None:
        check_ball(self.ball, "FastGradient")
        if self.start < 0:
            raise ValueError(f"FastGradient(start={self.start}): a distance is >= 0")
        if self.steps < 1:
            raise ValueError(f"FastGradient(steps={self.steps}): at least one look at the gradient")

    @property
    def starts_at_clean(self) -> bool:  # type: ignore[override]
        return self.start == 0

    def respond(self, game: Game) -> Response:
        ball, slots = self.ball, game.slots
        points = [working_copy(slot) for slot in slots]
        if self.start:
            points = [ball.sample(p, slot.valid, around=slot.value) for p, slot in zip(points, slots, strict=True)]
            points = [p * (self.start / ball.radius) for p in points]
        unperturbed: Tensor | None = None
        leaps: list[Tensor] = []
        for _ in range(self.steps):
            points = [leap * (self.start / ball.radius) for leap in leaps] or points
            points = [
                ball.in_box(p, slot.valid, around=slot.value).requires_grad_()
                for p, slot in zip(points, slots, strict=True)
            ]
            gradients = slope(game.payoff(points), points)
            unperturbed = lost(gradients, slots, unperturbed)
            leaps = [ball.leap(g, slot.valid, around=slot.value) for g, slot in zip(gradients, slots, strict=True)]
        assert unperturbed is not None
        values = [without(unperturbed, leap) for leap in leaps]
        return Response(values, unperturbed, backward_passes=self.steps)
