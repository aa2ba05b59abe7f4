"""Players that do not look: random noise and random masks, the control of every method."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..balls import Ball, check_ball
from ..sites.site import Slot
from .player import InBall, Random, working_copy


@dataclass(frozen=True)
class Noise(Random, InBall):
    """Random noise: uniform on the ball's surface, over the valid positions of each example.

    >>> import sparring as sp
    >>> player = sp.Noise(sp.L2(2.0))
    >>> round(player.draw(Slot("x", torch.zeros(1, 5))).norm().item(), 4)
    2.0
    """

    ball: Ball

    def __post_init__(self) -> None:
        check_ball(self.ball, "Noise")

    def draw(self, slot: Slot) -> Tensor:
        return self.ball.sample(working_copy(slot), slot.valid, around=slot.value)


@dataclass(frozen=True)
class Bernoulli(Random):
    """A random mask: every entry kept with probability `keep`, kept entries divided by it.

    Args:
        keep: keep rate in (0, 1].
        rescale: divide by the keep rate, so that the mask's mean is one on average; "active" divides each example's mask by the
            share of entries it kept, so that its mean is exactly one.
        shared: one mask for the whole batch instead of one per example.
    """

    keep: float
    rescale: bool | Literal["active"] = True
    shared: bool = False

    def __post_init__(self) -> None:
        if self.rescale not in (True, False, "active"):
            raise ValueError(f'Bernoulli(rescale={self.rescale!r}): choose True, False or "active"')
        if not 0 < self.keep <= 1:
            raise ValueError(f"Bernoulli(keep={self.keep}): a keep rate lies in (0, 1]")

    @property
    def kinds(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset({"mask"})

    def draw(self, slot: Slot) -> Tensor:
        shape = (1, *slot.value.shape[1:]) if self.shared else slot.value.shape
        rates = torch.full(shape, self.keep, dtype=slot.value.dtype, device=slot.value.device)
        mask = torch.bernoulli(rates)
        if self.rescale == "active":
            kept = mask.mean(tuple(range(1, mask.dim())), keepdim=True)
            return mask / kept.clamp_min(torch.finfo(mask.dtype).tiny)
        return mask / self.keep if self.rescale else mask
