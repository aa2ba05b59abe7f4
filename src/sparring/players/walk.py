"""Finite-difference unrolling: differentiate through the follower's ascent without differentiating the model twice."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..balls import Ball
from ..sites.site import Slot
from .player import Game, Response, only, slope, sound


class State(NamedTuple):
    """The follower between two steps: its perturbation and, for Adam, two running moments, one tensor per slot."""

    deltas: tuple[Tensor, ...]
    first: tuple[Tensor, ...] = ()
    second: tuple[Tensor, ...] = ()

    def map(self, f: Callable[[Tensor], Tensor]) -> "State":
        return State(*(tuple(f(t) for t in part) for part in self))

    def flat(self) -> list[Tensor]:
        return [t for part in self for t in part]


class Climber(Protocol):
    """The part of `PGD` that the walk back needs."""

    @property
    def ball(self) -> Ball: ...
    @property
    def steps(self) -> int: ...
    @property
    def difference(self) -> float | None: ...
    @property
    def central(self) -> bool: ...
    def advance(self, state: State, gradients: Sequence[Tensor], slots: Sequence[Slot], step: int) -> State: ...


@dataclass
class Walk:
    """The steps of one ascent, remembered so that the leader's pull can be carried back through them.

    Let l be the payoff and w the leader's pull on the gradient used in step k. The missing term is the change of l's parameter
    gradient along w, [grad l(delta + h w) - grad l(delta)] / h, against the gradient that step k took anyway (or, `central`,
    against the opposite side). Update rule and projection are differentiated exactly: they are cheap and hold no model.
    """

    player: Climber
    game: Game
    history: list[tuple[State, list[Tensor], list[Tensor]]] = field(default_factory=list)
    good: Tensor | None = None

    def respond(self, state: State) -> Response:
        game, both = self.game, self.both_sides
        good = torch.ones(game.batch, dtype=torch.bool, device=game.clean.device)
        for step in range(1, self.player.steps + 1):
            if both or not torch.is_grad_enabled() or not game.parameters:
                points = [d.detach().requires_grad_() for d in state.deltas]
                gradients, rest = slope(game.payoff(points), points), list[Tensor]()
            else:
                gradients, rest = self.gradients(state.deltas)
            good = good & sound(gradients, game.slots)
            self.history.append((state, gradients, rest))
            state = self.player.advance(state, gradients, game.slots, step).map(Tensor.detach)
        self.good = good
        final = [only(good, d) for d in state.deltas]
        values = _Follower.apply(self, len(final), *final, game.attached_clean, *game.parameters)
        return Response(list(values), unperturbed=~good, backward_passes=self.player.steps * (2 + both))

    def gradients(self, deltas: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Gradients of the summed payoff: in the perturbations, and in the clean outputs followed by the parameters."""
        points = [d.detach().requires_grad_() for d in deltas]
        clean = self.game.clean.detach().requires_grad_()
        with torch.enable_grad():
            payoff = self.game.payoff(points, attached=True, clean=clean)
        everything = slope(payoff, [*points, clean, *self.game.parameters])
        return everything[: len(points)], everything[len(points) :]

    def back(self, pulls: Sequence[Tensor]) -> list[Tensor | None]:
        """Carry the leader's pull on the final perturbation back to the clean outputs and the parameters."""
        player, slots = self.player, self.game.slots
        assert self.good is not None
        pull = State(tuple(only(self.good, p) for p in pulls))
        total: list[Tensor | None] = [None] * (1 + len(self.game.parameters))
        for step in range(player.steps, 0, -1):
            state, gradients, rest = self.history[step - 1]
            with torch.enable_grad():
                state = state.map(lambda t: t.detach().requires_grad_())
                leaves = [g.detach().requires_grad_() for g in gradients]
                after = player.advance(state, leaves, slots, step).flat()
            before = [*state.flat(), *leaves]
            weights = [*pull.flat(), *(torch.zeros_like(t) for t in after[len(pull.flat()) :])]
            back = torch.autograd.grad(after, before, weights, allow_unused=True, materialize_grads=True)
            pull = State(*_regroup(back, state))
            probe = [torch.where(torch.isfinite(w), w, 0.0) for w in back[len(state.flat()) :]]
            length = max(float(player.ball.norm(w, slot.valid).max()) for w, slot in zip(probe, slots, strict=True))
            if length == 0:
                continue
            h = self._share(probe[0]) * player.ball.radius / length
            here, there = self._difference(state.deltas, probe, (gradients, rest), h)
            pull = pull._replace(deltas=tuple(p + change for p, change in zip(pull.deltas, here, strict=True)))
            total = [change if old is None else old + change for old, change in zip(total, there, strict=True)]
        return total

    def _difference(
        self, deltas: Sequence[Tensor], probe: Sequence[Tensor], at_delta: tuple[list[Tensor], list[Tensor]], h: float
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Directional derivative along the probe of the gradients in the perturbations and in everything else."""
        ahead = self._in_box([d + h * w for d, w in zip(deltas, probe, strict=True)])
        near, far = self.gradients(ahead)
        near0, far0, span = *at_delta, h
        if self.both_sides:
            # A box may have moved the first point: the second one lies the same way behind it, so that the two still differ
            # by a multiple of the probe.
            span = 2 * h if self.player.central else h
            near0, far0 = self.gradients(self._in_box([a - span * w for a, w in zip(ahead, probe, strict=True)]))
        return (
            [(a - b) / span for a, b in zip(near, near0, strict=True)],
            [(a - b) / span for a, b in zip(far, far0, strict=True)],
        )

    @property
    def both_sides(self) -> bool:
        """Two points of their own for every difference: asked for, or because the perturbation may stand at the edge of a box."""
        return self.player.central or self.player.ball.box is not None

    def _in_box(self, points: Sequence[Tensor]) -> list[Tensor]:
        ball, slots = self.player.ball, self.game.slots
        return [ball.in_box(p, slot.valid, around=slot.value) for p, slot in zip(points, slots, strict=True)]

    def _share(self, like: Tensor) -> float:
        if self.player.difference is not None:
            return self.player.difference
        return torch.finfo(like.dtype).eps ** (1 / 3 if self.player.central else 1 / 2)


def _regroup(tensors: Sequence[Tensor], state: State) -> list[tuple[Tensor, ...]]:
    parts, start = [], 0
    for part in state:
        parts.append(tuple(tensors[start : start + len(part)]))
        start += len(part)
    return parts


class _Follower(torch.autograd.Function):
    """Hands the final perturbation on; in backward it meets the leader's pull and walks it back."""

    @staticmethod
    def forward(ctx: Any, walk: Walk, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.walk, ctx.count = walk, count
        ctx.autocast = (
            torch.is_autocast_enabled(tensors[0].device.type),
            torch.get_autocast_dtype(tensors[0].device.type),
        )
        return tuple(t.view_as(t) for t in tensors[:count])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *pulls: Tensor) -> tuple[Any, ...]:
        enabled, dtype = ctx.autocast
        with torch.autocast(pulls[0].device.type, enabled=enabled, dtype=dtype):
            total = ctx.walk.back(pulls)
        return (None, None, *(None for _ in range(ctx.count)), *total)
