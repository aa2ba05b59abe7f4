"""Projected gradient ascent, plain or unrolled (the Stackelberg follower)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from ..balls import Ball, check_ball
from ..sites.site import Slot
from .attention_kernel import math_attention
from .player import Game, InBall, Response, Unroll, lost, slope, without, working_copy
from .unrolled import Unrolled
from .walk import State, Walk, moved, rows

NOISE = 100.0  # rounding errors: a first-order gain below so many is not told apart from none
NEAR, NEAR_IN_HALF = (
    0.1,
    0.5,
)  # of the radius: where an ascent starts that nobody told where; rounding of 16 bits hides more
HALF = (torch.float16, torch.bfloat16)
Update = Literal["normalised", "raw", "sign", "adam"]
Start = float | Literal["uniform"] | None


@dataclass(frozen=True)
class PGD(InBall):
    """Projected gradient ascent from a random start.

    Unrolled, it is SALT's follower (Zuo et al. 2021, eq. 3-6): the leader differentiates through all steps, projection included,
    either exactly (double backward) or by finite differences of the parameter gradient. Exactly, all steps but the last run again
    in backward instead of being kept: the memory of one step, whatever their number.

    >>> import sparring as sp
    >>> sp.PGD(sp.L2(2.0), steps=4).size
    1.25

    Args:
        ball: where the perturbation must stay, per example.
        steps: number of ascent steps K.
        step_size: length of a step; by default the radius for one step, 2.5 * radius / steps for more.
        start: standard deviation of the Gaussian start, or "uniform" for a uniform start in the ball; 0 starts at the
            clean point. None starts in a random direction, a tenth of the radius away: much nearer, single precision has no
            slope of a divergence but rounding. In half precision and under autocast it is half of the radius.
        update: "normalised" (gradient divided by its norm in the ball's norm), "raw", "sign" or "adam".
        unroll: False, "autograd" or "finite_difference".
        interaction: how much of the derivative through the ascent counts, from 0 (a plain ascent) to 1 (SALT's equations). None
            counts all of it for examples with labels and none of it for those without.
        betas: Adam's decay rates.
        difference: length of the finite-difference probe as a share of the radius; by default the root of the machine
            precision (its cube root if `central`).
        central: probe on both sides: more exact, and dearer by a forward pass a step.
    """

    ball: Ball
    steps: int = 1
    step_size: float | None = None
    start: Start = None
    update: Update = "normalised"
    unroll: Unroll = False
    interaction: float | None = 1.0
    betas: tuple[float, float] = (0.9, 0.98)
    difference: float | None = None
    central: bool = False

    def __post_init__(self) -> None:
        check_ball(self.ball, "PGD")
        if self.steps < 1:
            raise ValueError(f"PGD(steps={self.steps}): at least one step")
        if self.update not in ("normalised", "raw", "sign", "adam"):
            raise ValueError(f'PGD(update={self.update!r}): choose "normalised", "raw", "sign" or "adam"')
        if self.unroll not in (False, "autograd", "finite_difference"):
            raise ValueError(f'PGD(unroll={self.unroll!r}): choose False, "autograd" or "finite_difference"')
        if self.update == "raw" and self.step_size is None:
            raise ValueError('PGD(update="raw") needs step_size=: a raw gradient has no natural length')
        if self.step_size is not None and not self.step_size > 0:
            raise ValueError(f"PGD(step_size={self.step_size}): a step is longer than 0")
        if self.interaction is not None and not 0 <= self.interaction <= 1:
            raise ValueError(
                f"PGD(interaction={self.interaction}): from 0, a plain ascent, to 1, all of its derivative"
            )
        if self.start not in (None, "uniform") and not (isinstance(self.start, int | float) and self.start >= 0):
            raise ValueError(f'PGD(start={self.start!r}): a standard deviation >= 0, "uniform", or None')

    @property
    def starts_at_clean(self) -> bool:  # type: ignore[override]
        return self.start == 0

    @property
    def size(self) -> float:
        """The step length in use."""
        if self.step_size is not None:
            return self.step_size
        return self.ball.radius if self.steps == 1 else 2.5 * self.ball.radius / self.steps

    def first_move(self, slot: Slot) -> Tensor:
        """The random start, already inside the ball."""
        zeros = working_copy(slot)
        if self.start is None:
            half = slot.value.dtype in HALF or torch.is_autocast_enabled(slot.value.device.type)
            return self.ball.sample(zeros, slot.valid, around=slot.value) * (NEAR_IN_HALF if half else NEAR)
        if self.start == "uniform":
            return self.ball.interior(zeros, slot.valid, around=slot.value)
        if self.start == 0:
            return zeros
        return self.ball.project(torch.randn_like(zeros) * self.start, slot.valid, around=slot.value)

    def advance(self, state: State, gradients: Sequence[Tensor], slots: Sequence[Slot], step: int) -> State:
        """One ascent step and the projection; the whole of it is differentiable (the sign rule has derivative zero)."""
        first, second = state.first, state.second
        if self.update == "raw":
            moves = [torch.nan_to_num(g, 0.0, 0.0, 0.0) for g in gradients]
        elif self.update == "sign":
            moves = [torch.nan_to_num(g, 0.0, 0.0, 0.0).sign() for g in gradients]
        elif self.update == "normalised":
            moves = [self._direction(g, slot) for g, slot in zip(gradients, slots, strict=True)]
        else:
            beta1, beta2 = self.betas
            clean = [torch.nan_to_num(g, 0.0, 0.0, 0.0) for g in gradients]
            first = tuple(
                beta1 * m + (1 - beta1) * g for m, g in zip(first or map(torch.zeros_like, clean), clean, strict=True)
            )
            second = tuple(
                beta2 * v + (1 - beta2) * g * g
                for v, g in zip(second or map(torch.zeros_like, clean), clean, strict=True)
            )
            moves = [
                m / (1 - beta1**step) / ((v / (1 - beta2**step)).clamp_min(1e-30).sqrt() + 1e-8)
                for m, v in zip(first, second, strict=True)
            ]
        deltas = tuple(
            self.ball.project(d + self.size * move, slot.valid, around=slot.value)
            for d, move, slot in zip(state.deltas, moves, slots, strict=True)
        )
        return State(deltas, first, second)

    def _direction(self, gradient: Tensor, slot: Slot) -> Tensor:
        """The gradient at norm 1. Its derivative is divided by the gradient's norm: where that norm is rounding error, the move
        counts as a constant instead."""
        unit = self.ball.normalise(gradient, slot.valid)
        if not unit.requires_grad:
            return unit
        trusted = self._sloped(gradient.detach(), unit.detach(), slot.valid)
        return torch.where(trusted.view(-1, *(1,) * (unit.dim() - 1)), unit, unit.detach())

    def _sloped(self, gradient: Tensor, unit: Tensor, valid: Tensor | None) -> Tensor:
        """Where the first-order gain of a step along `unit` is more than rounding, (B,).

        A finite difference divides by the gradient's own norm, which in the ball of the largest entry is far less than the gain.
        """
        if self.unroll == "finite_difference":
            gain = self.ball.norm(gradient, valid)
        else:
            gain = (gradient * unit).reshape(len(unit), -1).sum(1)
        return gain * self.size > NOISE * torch.finfo(gradient.dtype).eps

    def seen_through(self, gradients: Sequence[Tensor], slots: Sequence[Slot]) -> Callable[[], Tensor] | float:
        """Share of the examples whose step has a derivative, when somebody asks: signs have none, nor has rounding."""
        if self.update != "normalised":
            return float(self.update != "sign")
        kept = [(g.detach(), slot.valid) for g, slot in zip(gradients, slots, strict=True)]

        def share() -> Tensor:
            found = [self._sloped(g, self.ball.normalise(g, valid), valid) for g, valid in kept]
            return torch.cat(found).float().mean()

        return share

    def share(self, game: Game) -> float | Tensor:
        """How much of the derivative counts: one number, or one per example (B,)."""
        if self.interaction is not None:
            return float(self.interaction)
        if game.labelled is None or game.labelled in (0, game.batch):
            return 0.0 if game.labelled == 0 else 1.0
        return (torch.arange(game.batch, device=game.clean.device) < game.labelled).float()

    def respond(self, game: Game) -> Response:
        state = begun = State(tuple(self.first_move(slot) for slot in game.slots))
        share = self.share(game)
        unroll = False if isinstance(share, float) and share == 0 else self.unroll
        if unroll == "finite_difference":
            return Walk(self, game).respond(state)
        unperturbed: Tensor | None = None
        exact, taken = unroll == "autograd", 0
        if exact and self.steps > 1 and game.apart is not None:
            # All but the last one, which keeps its graph: backward needs that first, and drops it before the others run again.
            taken = self.steps - 1
            state, unperturbed = Unrolled(game.apart(), game.slots, self.advance).ascend(state, taken)
        for step in range(taken + 1, self.steps + 1):
            points = [d if d.requires_grad else d.detach().requires_grad_() for d in state.deltas]
            if exact:
                with math_attention():  # the fused attention kernels cannot be differentiated twice
                    payoff = game.payoff(points, attached=True)
            else:
                payoff = game.payoff(points)
            gradients = slope(payoff, points, create_graph=exact)
            unperturbed = lost(gradients, game.slots, unperturbed)
            state = self.advance(state._replace(deltas=tuple(points)), gradients, game.slots, step)
            if not exact:
                state = state.map(Tensor.detach)
        assert unperturbed is not None
        values = [without(unperturbed, d) for d in state.deltas]
        notes: dict[str, Any] = {"moved": moved(begun.deltas, values, game.slots, self.ball)}
        if exact:
            notes["seen_through"] = self.seen_through(gradients, game.slots)
        if exact and not (isinstance(share, float) and share == 1):
            values = [v.detach() + rows(share, v) * (v - v.detach()) for v in values]
        # The leader's backward pass goes through each unrolled gradient once more: through its backward pass, which costs
        # two, and through its forward pass, which costs one. A step that was taken before is taken again first.
        return Response(values, unperturbed, notes, backward_passes=self.steps * (4 if exact else 1) + taken)
