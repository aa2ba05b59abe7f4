"""Players that do not look: random noise and random masks, the control of every method."""

from dataclasses import dataclass

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
        rescale: divide by the keep rate, so that the mask's mean is one.
        shared: one mask for the whole batch instead of one per example.
    """

    keep: float
    rescale: bool = True
    shared: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.keep <= 1:
            raise ValueError(f"Bernoulli(keep={self.keep}): a keep rate lies in (0, 1]")

    @property
    def kinds(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset({"mask"})

    def draw(self, slot: Slot) -> Tensor:
        shape = (1, *slot.value.shape[1:]) if self.shared else slot.value.shape
        rates = torch.full(shape, self.keep, dtype=slot.value.dtype, device=slot.value.device)
        mask = torch.bernoulli(rates)
        return mask / self.keep if self.rescale else mask
