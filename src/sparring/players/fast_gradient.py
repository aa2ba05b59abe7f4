"""One look at the gradient, then a step of full radius."""

from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from ..balls import L2, Ball, Linf, check_ball
from ..sites.site import Slot
from .player import Game, InBall, Response, lost, slope, vanished, without, working_copy

_OURS = (L2, Linf)  # themselves: what somebody made of them may take other steps


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
        scale = self.start / ball.radius if self.start else 0.0
        leaps: list[Tensor] = []
        unperturbed: Tensor | None = None
        points = [self._point(slot, scale) if self.start else working_copy(slot) for slot in slots]
        for _ in range(self.steps):
            points = [leap * scale for leap in leaps] or points
            if ball.box is not None:
                points = [ball.in_box(p, slot.valid, around=slot.value) for p, slot in zip(points, slots, strict=True)]
            for point in points:
                point.requires_grad_()
            gradients = slope(game.payoff(points), points)
            leaps = [ball.leap(g, slot.valid, around=slot.value) for g, slot in zip(gradients, slots, strict=True)]
            if self.steps == 1 and len(slots) == 1 and type(ball) in _OURS and ball.box is None and not ball.rows:
                # Where there is no direction their leap is exactly zero; which examples these are is for the diagnostics to ask.
                return Response(leaps, partial(vanished, gradients, [slots[0].valid]), backward_passes=1)
            unperturbed = lost(gradients, slots, unperturbed)
        assert unperturbed is not None
        return Response([without(unperturbed, leap) for leap in leaps], unperturbed, backward_passes=self.steps)

    def _point(self, slot: Slot, scale: float) -> Tensor:
        """A random point at the distance `start`."""
        like = slot.value if slot.value.dtype in (torch.float32, torch.float64) else working_copy(slot)
        if self._far is not None:
            return self._far.sample(like, slot.valid)
        return self.ball.sample(like, slot.valid, around=slot.value) * scale

    @cached_property
    def _far(self) -> Ball | None:
        """The ball whose surface lies at the distance `start`; None where a box has cut the smaller one before."""
        ours = type(self.ball) in _OURS and self.ball.box is None
        return self.ball.with_radius(self.start) if ours else None
