"""The adversary among dropout masks: flip the units with the largest influence."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from ..balls.flips import Flips
from ..late import ask
from ..sites.site import Slot
from .player import Game, Player, Response, lost, slope

_NO_SLOPE = (
    "GreedyFlip(start='base'): the start mask equals the base mask and nothing else differs between the two passes, so the divergence "
    "is zero and has no slope; use start='flip', or share_noise=False with dropout elsewhere in the model"
)


@dataclass(frozen=True)
class GreedyFlip(Player):
    """Adversarial dropout: flip mask entries greedily by their influence on the divergence, in K looks (eq. 7-9).

    >>> import sparring as sp
    >>> sp.GreedyFlip(sp.Flips(0.03), steps=2)  # doctest: +ELLIPSIS
    GreedyFlip(ball=Flips(fraction=0.03, rows=False), steps=2, start='flip', restarts=1, ...)

    The base mask is where the clean pass's multiplier is not zero: all ones, or the sampled mask if the site drew one. The
    influence map is the gradient of the summed divergence by the relaxed mask; no parameter gradient is computed for it.

    Args:
        ball: how many entries may differ from the base mask, the start flip included.
        steps: K: the influence map is taken anew K times, the budget grows with the steps.
        start: "flip" flips one random entry first, because at the base mask itself a divergence has no slope; "base" starts
            there all the same, for models whose other noise differs between the passes; a 0/1 tensor starts at that mask.
        restarts: random starts; the best answer of each example counts. The first flip decides in which direction the output is
            pushed, so a few starts come much nearer to the exact worst mask than one (see the paper's page in the docs).
        both_ways: better than the paper, for three more forward passes: the first look spends the whole budget twice, on the entries
            whose flip pushes the output further the way the start flip pushed it, and on those that push it back, which changes it as
            much; each example goes on with the better mask, and later looks choose all flips anew and count where they gain.
        paper_algorithm: Algorithm 1 to the letter: one flip over the budget, and flips of negative gain.
        rescale: divide a mask by its share of active entries, so that its mean is one.
        through_scale: let the influence map see that divisor too instead of treating it as a constant.

    Paper: Park et al., Adversarial Dropout for Recurrent Neural Networks (2019).
    """

    ball: Flips
    steps: int = 1
    start: Literal["flip", "base"] | Tensor = "flip"
    restarts: int = 1
    paper_algorithm: bool = False
    rescale: bool = True
    through_scale: bool = False
    both_ways: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.ball, Flips):
            size = self.ball if isinstance(self.ball, int | float) else "share"
            raise TypeError(f"GreedyFlip(ball={self.ball!r}): how many flips is an object; write ball=sp.Flips({size})")
        if self.steps < 1:
            raise ValueError(f"GreedyFlip(steps={self.steps}): at least one round")
        if self.restarts < 1:
            raise ValueError(f"GreedyFlip(restarts={self.restarts}): at least one start")
        if self.both_ways and self.paper_algorithm:
            raise ValueError("GreedyFlip(both_ways=True, paper_algorithm=True): choose one of the two searches")
        if isinstance(self.start, Tensor):
            if not bool(((self.start == 0) | (self.start == 1)).all()):
                raise ValueError("GreedyFlip(start=...): a start mask holds zeros and ones only")
        elif self.start not in ("flip", "base"):
            raise ValueError(f'GreedyFlip(start={self.start!r}): choose "flip", "base" or a mask of zeros and ones')

    @property
    def kinds(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset({"mask"})

    @property
    def idle(self) -> bool:
        return self.ball.fraction == 0

    def multiplier(self, mask: Tensor) -> Tensor:
        """What the network multiplies by: the mask over its share of active entries."""
        if not self.rescale:
            return mask
        share = mask.mean(self.ball.axes(mask), keepdim=True)
        return mask / (share if self.through_scale else share.detach()).clamp_min(torch.finfo(mask.dtype).tiny)

    def respond(self, game: Game) -> Response:
        bases = [base_mask(slot) for slot in game.slots]
        masks, good = self._climb(game, bases)
        if self.restarts > 1:
            reached = self._value(game, masks)
            for _ in range(self.restarts - 1):
                others, sound_ones = self._climb(game, bases)
                rival = self._value(game, others)
                better = sound_ones & (~good | (rival > reached))
                masks = [_where(better, other, mask) for other, mask in zip(others, masks, strict=True)]
                good, reached = good | sound_ones, torch.where(better, rival, reached)
        flips = torch.stack([self.ball.count(m, b).float().mean() for m, b in zip(masks, bases, strict=True)])
        values = [_where(good, self.multiplier(mask), slot.value) for mask, slot in zip(masks, game.slots, strict=True)]
        return Response(values, ~good, {"flips": flips.mean()}, backward_passes=self.steps * self.restarts)

    def _climb(self, game: Game, bases: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
        """K steps from one start (eq. 9): the masks, and for which examples (B,) every influence map was sound."""
        if self.both_ways:
            return self._climb_both_ways(game, bases)
        masks = [self._first(base, slot) for base, slot in zip(bases, game.slots, strict=True)]
        budgets = [self._budgets(mask, base, slot) for mask, base, slot in zip(masks, bases, game.slots, strict=True)]
        good = torch.ones(game.batch, dtype=torch.bool, device=game.clean.device)
        flip = self.ball.flip_as_published if self.paper_algorithm else self.ball.flip
        for k in range(self.steps):
            payoff, influence = self.influence(game, masks)
            good = good & ~lost(influence, game.slots) & self._slopes(payoff, masks, bases, first=k == 0)
            masks = [
                flip(mask, base, im, budget[k], slot.valid)
                for mask, base, im, budget, slot in zip(masks, bases, influence, budgets, game.slots, strict=True)
            ]
        return masks, good

    def _climb_both_ways(self, game: Game, bases: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
        """The same from one start, with the whole budget in every look and the better of two directions after the first."""
        masks = [self._first(base, slot) for base, slot in zip(bases, game.slots, strict=True)]
        budgets = [self._budgets(m, base, slot)[-1] for m, base, slot in zip(masks, bases, game.slots, strict=True)]
        good = torch.ones(game.batch, dtype=torch.bool, device=game.clean.device)
        reached: Tensor | None = None
        for k in range(self.steps):
            payoff, influence = self.influence(game, masks)
            good = good & ~lost(influence, game.slots) & self._slopes(payoff, masks, bases, first=k == 0)
            for sign in (1, -1) if k == 0 else (1,):
                rivals = [
                    self.ball.flip(base, base, sign * im, budget, slot.valid)
                    for base, im, budget, slot in zip(bases, influence, budgets, game.slots, strict=True)
                ]
                value = self._value(game, rivals)
                if reached is None:
                    masks, reached = rivals, value
                    continue
                better = value > reached
                masks = [_where(better, rival, mask) for rival, mask in zip(rivals, masks, strict=True)]
                reached = torch.where(better, value, reached)
        return masks, good

    def _slopes(self, payoff: Tensor, masks: Sequence[Tensor], bases: Sequence[Tensor], first: bool) -> Tensor:
        """(B,) False where a mask equals its base and nothing else tells the two passes apart: all slopes are rounding there.

        That is a start at the base mask, or a later look after every flip went back; only the first is worth a warning.
        """
        away = torch.zeros_like(payoff, dtype=torch.bool)
        for mask, base in zip(masks, bases, strict=True):
            moved = (mask != base).flatten(1).any(1)
            away = away | (moved if len(moved) == len(away) else moved.any())
        known = away | (payoff.abs() > 1e-3 * torch.finfo(payoff.dtype).eps ** 0.5)
        if first:
            ask(~known.any(), partial(warnings.warn, _NO_SLOPE, stacklevel=3))
        return known

    def _value(self, game: Game, masks: Sequence[Tensor]) -> Tensor:
        """What masks reach (B,); one number for all where they share a mask."""
        with torch.no_grad():
            payoff = game.payoff([self.multiplier(mask) for mask in masks])
        shared = game.batch > 1 and any(len(mask) == 1 for mask in masks)
        return payoff.mean().expand_as(payoff) if shared else payoff

    def influence(self, game: Game, masks: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """The payoff (B,) at masks and the influence map: its gradient by the relaxed masks (eq. 7)."""
        relaxed = [mask.detach().requires_grad_() for mask in masks]
        payoff = game.payoff([self.multiplier(mask) for mask in relaxed])
        return payoff.detach(), slope(payoff, relaxed)

    def _first(self, base: Tensor, slot: Slot) -> Tensor:
        if isinstance(self.start, Tensor):
            try:
                return self.start.to(base).expand_as(base).clone()
            except RuntimeError as error:
                raise ValueError(
                    f"GreedyFlip(start=...): a start mask of shape {tuple(self.start.shape)} does not fit {slot.name}, "
                    f"which takes {tuple(base.shape)}"
                ) from error
        if self.start == "base":
            return base
        return self.ball.sample(base, 1, slot.valid)

    def _budgets(self, mask: Tensor, base: Tensor, slot: Slot) -> list[Tensor]:
        entries = self.ball.entries(mask, slot.valid)
        if isinstance(self.start, Tensor):
            used, total = self.ball.count(mask, base), self.ball.budget(entries)

            def refuse() -> None:
                raise ValueError(
                    f"GreedyFlip(start=...): the start mask differs from the base in {int(used.max())} entries at {slot.name}, "
                    f"the budget is {int(total.min())}"
                )

            ask((used > total).any(), refuse)
            return [torch.maximum(self.ball.budget(entries, k / self.steps), used) for k in range(1, self.steps)] + [
                total
            ]
        return self.ball.schedule(entries, self.steps, spent=int(self.start == "flip"))


def base_mask(slot: Slot) -> Tensor:
    """Zeros and ones of the clean multiplier; a value expanded along the batch is one mask for all examples (1, ...)."""
    value = slot.value
    if value.shape[0] > 1 and value.stride(0) == 0:
        value = value[:1]
    dtype = value.dtype if value.dtype in (torch.float32, torch.float64) else torch.float32
    return (value != 0).to(dtype)


def _where(chosen: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """`new` for the chosen examples (B,), `old` for the rest; a mask that all examples share goes by the majority."""
    if len(new) == 1 and len(chosen) > 1:
        return torch.where(2 * chosen.sum() > len(chosen), new, old[:1].to(new))
    return torch.where(chosen.view(-1, *(1,) * (new.dim() - 1)), new, old.to(new))
