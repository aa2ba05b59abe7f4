"""Finite-difference unrolling: differentiate through the follower's ascent without differentiating the model twice."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..balls import Ball
from ..penalties import full_precision
from ..sites.site import Slot
from .player import Game, Response, lost, slope, without


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
    def share(self, game: Game) -> float | Tensor: ...
    def advance(self, state: State, gradients: Sequence[Tensor], slots: Sequence[Slot], step: int) -> State: ...
    def seen_through(self, gradients: Sequence[Tensor], slots: Sequence[Slot]) -> Callable[[], Tensor] | float: ...


Gradients = tuple[list[Tensor], list[Tensor]]  # in the perturbations, and in all that the leader trains
SPREAD = 30.0  # how much shorter than the longest an example's pull may be before it needs a probe length of its own
BANDS = 4  # how many probe lengths there are at most where examples meet


@dataclass
class Walk:
    """The steps of one ascent, remembered so that the leader's pull can be carried back through them.

    Let l be the payoff and w the leader's pull on the gradient used in step k. The missing term is the change of l's parameter
    gradient along w. In the last step, where all examples pull about equally, it is [grad l(delta + h w) - grad l(delta)] / h,
    against the parameter gradient that the step took anyway. One such gradient is as large as the model, so earlier steps keep
    none: they are probed on both sides, [grad l(delta + h w) - grad l(delta - h w)] / 2h, and memory does not grow with the steps.
    Where pulls differ (or `central`, or where a box may cut the probe) every example i is probed along its unit pull u_i:
    [grad sum_i |w_i| l_i(delta_i + h u_i) - grad sum_i |w_i| l_i(delta_i - h u_i)] / 2h. That takes l_i for a function of delta_i
    alone. Where examples meet in a batch norm, those that pull about equally are probed at once instead, the others standing
    still, and the differences are added up. All these passes run in full precision, also under autocast. Update rule and
    projection are differentiated exactly: they are cheap and hold no model.

    Sharded parameters have gradients in the leader's own backward pass only. There the two sums themselves are charged, their value
    taken off again, and that backward pass makes the difference of their gradients.
    """

    player: Climber
    game: Game
    history: list[tuple[State, list[Tensor], list[Tensor]]] = field(default_factory=list)
    unperturbed: Tensor | None = None
    _final: list[Tensor] = field(default_factory=list)

    def respond(self, state: State) -> Response:
        game, both, begun = self.game, self.both_sides, state
        for step in range(1, self.player.steps + 1):
            rest = list[Tensor]()
            if both or not torch.is_grad_enabled() or not game.parameters:
                points = [d.detach().requires_grad_() for d in state.deltas]
                gradients = slope(game.payoff(points), points)
            elif step < self.player.steps:
                gradients = self._ascent(state.deltas)
            else:
                gradients, rest = self.gradients(state.deltas)
            self.unperturbed = lost(gradients, game.slots, self.unperturbed)
            self.history.append((state, gradients, rest))
            state = self.player.advance(state, gradients, game.slots, step).map(Tensor.detach)
        assert self.unperturbed is not None
        final = self._final = [without(self.unperturbed, d) for d in state.deltas]
        notes = {
            "moved": moved(begun.deltas, final, game.slots, self.player.ball),
            "seen_through": self.player.seen_through(gradients, game.slots),
        }
        if game.sharded:
            self._final = [d.requires_grad_() for d in final]
            return Response(self._final, self.unperturbed, notes, self.player.steps * 3 + 1, self.interaction)
        values = Follower.apply(self, len(final), *final, game.attached_clean, *game.parameters)
        return Response(list(values), self.unperturbed, notes, backward_passes=self.player.steps * 3 - (not both))

    def interaction(self, charge: Tensor) -> Tensor:
        """Zeros (B,) whose gradient is what the leader's pull on the answer means for the parameters."""
        if not charge.requires_grad:
            return torch.zeros_like(charge)
        (total,) = self.back(slope(charge, self._final, retain_graph=True))
        return torch.zeros_like(charge) if total is None else total - total.detach()

    def _ascent(self, deltas: Sequence[Tensor]) -> list[Tensor]:
        """Gradient of the payoff in the perturbations alone, in full precision."""
        points, again = [d.detach().requires_grad_() for d in deltas], self.game.precise_clean
        with torch.enable_grad(), torch.autocast(points[0].device.type, enabled=False):
            payoff = self.game.payoff(points, clean=None if again is None else again().detach())
        return slope(payoff, points)

    def gradients(self, deltas: Sequence[Tensor], weights: Tensor | None = None) -> Gradients:
        """Gradients of the summed payoff: in the perturbations, and in the clean outputs followed by the parameters.

        Where the parameters are sharded the second is the payoff itself, with its graph.
        """
        points, again = [d.detach().requires_grad_() for d in deltas], self.game.precise_clean
        if self.game.sharded:
            with torch.enable_grad():
                payoff = self.game.payoff(points, attached=True)
                payoff = payoff if weights is None else payoff * weights
            return slope(payoff, points, retain_graph=True), [payoff]
        with torch.enable_grad(), torch.autocast(points[0].device.type, enabled=False):
            # Through both sides at once under autocast: they nearly cancel, and rounding one of them would leave noise.
            clean = full_precision(self.game.clean).detach().requires_grad_() if again is None else again()
            payoff = self.game.payoff(points, attached=True, clean=clean)
            payoff = payoff if weights is None else payoff * weights
        wanted = [*points, *([clean] if again is None else []), *self.game.parameters]
        everything = slope(payoff, wanted)
        rest = everything[len(points) :]
        return everything[: len(points)], rest if again is None else [torch.zeros_like(self.game.clean), *rest]

    def _precise_pull(self, pulls: Sequence[Tensor]) -> Sequence[Tensor]:
        """The leader's pull, whose direction is the payoff's gradient at the answer, taken in full precision.

        A normalised step hands on only the part of the pull across its own direction: a small difference of large numbers, which
        the rounding of a half-precision pass would replace by noise.
        """
        if self.game.precise_clean is None:
            return pulls
        precise = self._ascent(self._final)
        along = torch.stack([(p.float() * g).flatten(1).sum(1) for p, g in zip(pulls, precise, strict=True)]).sum(0)
        size = torch.stack([g.square().flatten(1).sum(1) for g in precise]).sum(0)
        share = torch.where(size > 0, along / torch.where(size > 0, size, 1.0), 0.0)
        return [share.view(-1, *(1,) * (g.dim() - 1)) * g for g in precise]

    def back(self, pulls: Sequence[Tensor]) -> list[Tensor | None]:
        """Carry the leader's pull on the final perturbation back to the clean outputs and the parameters."""
        player, slots = self.player, self.game.slots
        self.game.unchanged()
        assert self.unperturbed is not None
        share = player.share(self.game)
        pull = State(tuple(rows(share, p) * without(self.unperturbed, p) for p in self._precise_pull(pulls)))
        total: list[Tensor | None] = [None] * (1 if self.game.sharded else 1 + len(self.game.parameters))
        for step in range(player.steps, 0, -1):
            state, gradients, rest = self.history[step - 1]
            with torch.enable_grad():
                state = state.map(lambda t: t.detach().requires_grad_())
                leaves = [g.detach().requires_grad_() for g in gradients]
                after = player.advance(state, leaves, slots, step).flat()
            before = [*state.flat(), *leaves]
            weights = [*pull.flat(), *(torch.zeros_like(t) for t in after[len(pull.flat()) :])]
            back = torch.autograd.grad(after, before, weights, allow_unused=True, materialize_grads=True)
            pull = State(*regroup(back, state))
            probe = [torch.where(torch.isfinite(w), w, 0.0) for w in back[len(state.flat()) :]]
            lengths = torch.stack([player.ball.norm(w, s.valid) for w, s in zip(probe, slots, strict=True)]).amax(0)
            longest, alike = self._compared(lengths)
            if longest == 0:
                continue
            if self.both_sides or not alike:
                rest.clear()  # as large as the model, and of no use
            for ahead, behind, span in self._differences(
                state.deltas,
                probe,
                (gradients, [*rest]),
                lengths,
                longest,
                alike,  # used up, and somebody may come back twice
            ):
                changes = [(a - b) / span for a, b in zip(ahead[0], behind[0], strict=True)]
                pull = pull._replace(deltas=tuple(p + change for p, change in zip(pull.deltas, changes, strict=True)))
                _add(total, ahead[1], behind[1], span)
        return total

    def _differences(
        self,
        deltas: Sequence[Tensor],
        probe: Sequence[Tensor],
        here: Gradients,
        lengths: Tensor,
        longest: float,
        alike: bool,
    ) -> Iterator[tuple[Gradients, Gradients, float]]:
        """Gradients at pairs of points that lie apart along the probe, and how far; their differences add up to what is missing."""
        if here[1]:
            yield self._ahead(deltas, probe, here, longest)
        elif self.game.meet:
            for band in self._bands(lengths):
                part = [torch.where(band.view(-1, *(1,) * (w.dim() - 1)), w, 0.0) for w in probe]
                yield self._around(deltas, part, torch.where(band, lengths, 0.0).max().expand_as(lengths))
        else:
            yield self._around(deltas, probe, torch.full_like(lengths, longest) if alike else lengths)

    def _compared(self, lengths: Tensor) -> tuple[float, bool]:
        """The longest pull, and whether all are about as long; where that decides nothing, an accelerator is not asked."""
        if self.both_sides and lengths.device.type != "cpu":
            return torch.inf, False
        shortest = torch.where(lengths > 0, lengths, torch.inf).min()
        longest, least = torch.stack(
            [lengths.max(), shortest]
        ).tolist()  # one question: it decides how many passes follow
        return longest, least * SPREAD >= longest

    def _ahead(
        self, deltas: Sequence[Tensor], probe: Sequence[Tensor], here: Gradients, longest: float
    ) -> tuple[Gradients, Gradients, float]:
        """Two points along the probe, one of them known."""
        h = self._share(probe[0], 1 / 2) * self.player.ball.radius / longest
        return self.gradients([d + h * w for d, w in zip(deltas, probe, strict=True)]), here, h

    def _around(
        self, deltas: Sequence[Tensor], probe: Sequence[Tensor], lengths: Tensor
    ) -> tuple[Gradients, Gradients, float]:
        """Two new points, with a probe length of its own for every example."""
        boxed = self.player.ball.box is not None
        h = self._share(probe[0], 1 / 2 if boxed else 1 / 3) * self.player.ball.radius
        scale = torch.where(lengths > 0, lengths, 1.0)
        unit = [w / scale.view(-1, *(1,) * (w.dim() - 1)) for w in probe]
        ahead = self._in_box([d + h * u for d, u in zip(deltas, unit, strict=True)])
        # A box may have cut the first point. The second one lies one length behind it: in the box as well, and the two still
        # differ by a multiple of the probe.
        span = h if boxed else 2 * h
        behind = self._in_box([a - span * u for a, u in zip(ahead, unit, strict=True)])
        weights = lengths if len(lengths) > 1 or self.game.batch == 1 else lengths.expand(self.game.batch)
        return self.gradients(ahead, weights), self.gradients(behind, weights), span

    def _bands(self, lengths: Tensor) -> list[Tensor]:
        """Who pulls about equally. Over shards all are one band: every process must make the same passes."""
        if self.game.sharded:
            return [torch.ones_like(lengths, dtype=torch.bool)]
        steps = torch.log(lengths.max() / lengths) / math.log(SPREAD)  # infinite for those that do not pull
        number = torch.where(lengths > 0, steps, 0.0).floor().clamp(0, BANDS - 1)
        return [number == k for k in sorted(set(number.tolist()))]

    @property
    def both_sides(self) -> bool:
        """Two points of their own for every difference: asked for, or because the perturbation may stand at the edge of a box."""
        return self.player.central or self.player.ball.box is not None or self.game.sharded

    def _in_box(self, points: Sequence[Tensor]) -> list[Tensor]:
        ball, slots = self.player.ball, self.game.slots
        return [ball.in_box(p, slot.valid, around=slot.value) for p, slot in zip(points, slots, strict=True)]

    def _share(self, like: Tensor, power: float) -> float:
        """The probe's length as a share of the radius, from the precision in which the model really computes."""
        if self.player.difference is not None:
            return self.player.difference
        kinds = {like.dtype} | {p.dtype for p in self.game.parameters if p.is_floating_point()}
        return max(torch.finfo(kind).eps for kind in kinds) ** power


def rows(share: float | Tensor, like: Tensor) -> float | Tensor:
    """One number per example, shaped to multiply `like`; a plain number stays."""
    return share if isinstance(share, float) else share.view(-1, *(1,) * (like.dim() - 1)).to(like.dtype)


def _add(total: list[Tensor | None], there: list[Tensor], here: list[Tensor], span: float) -> None:
    """Add (there - here) / span. Both are used up from the end: each is as large as the model, and a third beside them would be too."""
    for i in reversed(range(len(total))):
        old, change = total[i], (there.pop() - here.pop()) / span
        total[i] = change if old is None else old + change


def moved(start: Sequence[Tensor], end: Sequence[Tensor], slots: Sequence[Slot], ball: Ball) -> Callable[[], Tensor]:
    """How far the follower went from its start, in radii, when somebody asks."""
    ends = [(s.detach(), e.detach(), slot.valid) for s, e, slot in zip(start, end, slots, strict=True)]
    return partial(_in_radii, ends, ball)


def _in_radii(ends: Sequence[tuple[Tensor, Tensor, Tensor | None]], ball: Ball) -> Tensor:
    return torch.cat([ball.norm(e - s, valid) for s, e, valid in ends]).mean() / max(ball.radius, 1e-30)


def regroup(tensors: Sequence[Tensor], state: State) -> list[tuple[Tensor, ...]]:
    """A flat list as the parts of a state like the given one."""
    parts, start = [], 0
    for part in state:
        parts.append(tuple(tensors[start : start + len(part)]))
        start += len(part)
    return parts


class Returning(Protocol):
    """An ascent that can be walked back."""

    def back(self, pulls: Sequence[Tensor]) -> list[Tensor | None]: ...


class Follower(torch.autograd.Function):
    """Hands the follower's state on; in backward it meets the leader's pull and walks it back."""

    @staticmethod
    def forward(ctx: Any, walk: Returning, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.walk, ctx.count = walk, count
        return tuple(t.view_as(t) for t in tensors[:count])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *pulls: Tensor) -> tuple[Any, ...]:
        total = ctx.walk.back(pulls)
        return (None, None, *(None for _ in range(ctx.count)), *total)
