"""Recipes that draw nothing, or for each example what its own values say: the same on one process as on two."""

from functools import partial

import torch
from torch import Tensor

import sparring as sp


class EvenStart(sp.PGD):
    """An ascent from a point that depends on the example alone."""

    def first_move(self, slot: sp.sites.Slot) -> Tensor:
        return self.ball.project(self.start * torch.cos(5 * slot.value.detach()), slot.valid, around=slot.value)


def even(words: str, mask: str, units: int) -> dict[str, partial]:
    """Recipes by name.

    Args:
        words: a module whose output is perturbed.
        mask: a dropout layer that is attacked.
        units: how many it has.
    """
    start = torch.ones(units)
    start[0] = 0.0
    ball = sp.L2(0.5)
    return {
        "smart": partial(sp.recipes.smart, at=words, by=EvenStart(ball, start=0.1)),
        "salt": partial(sp.recipes.salt, at=words, by=EvenStart(ball, start=0.1, unroll="autograd")),
        "salt_finite": partial(sp.recipes.salt, at=words, by=EvenStart(ball, start=0.1, unroll="finite_difference")),
        "free_lb": partial(sp.recipes.free_lb, at=words, ball=ball, start=0.0, steps=2),
        "free_at": partial(sp.recipes.free_at, at=words, ball=ball, start=0.0, steps=2, update="normalised"),
        "adversarial_dropout": partial(
            sp.recipes.adversarial_dropout, at=sp.Mask(mask, keep=1.0), ball=sp.Flips(0.2), start=start
        ),
    }
