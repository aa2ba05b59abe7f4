"""Adversarial logit pairing."""

from typing import Any

from torch import nn

from ..balls import Ball, Linf
from ..objective import Objective
from ..penalties import Penalty, squared_error
from ..players import PGD, Player
from ..players.pgd import Update
from ..terms import Term, Weight
from .grammar import Loss, Place, recipe, site_of


@recipe
def logit_pairing(
    model: nn.Module,
    loss: Loss,
    at: Place = None,
    *,
    ball: Ball = Linf(8 / 255),
    steps: int = 10,
    step_size: float | None = None,
    start: float = 1e-3,
    update: Update = "sign",
    by: Player | None = None,
    penalty: Penalty = squared_error,
    weight: Weight = 0.5,
    share_noise: bool = True,
    **options: Any,
) -> Objective:
    """Adversarial logit pairing (Kannan et al. 2018, section 4): half clean and half adversarial loss, and logits that stay alike.

    The player climbs the supervised loss, and the distance of the logits at its answer is charged beside that loss.

    >>> import sparring as sp, torch
    >>> model = nn.Sequential(nn.Linear(4, 3))
    >>> objective = sp.recipes.logit_pairing(model, sp.cross_entropy, ball=sp.Linf(0.1, box=(0, 1)), steps=3)
    >>> objective(torch.rand(2, 4), torch.tensor([0, 2])).backward()

    Args:
        model: any classifier.
        loss: per-example loss; half of it is taken at the perturbed point.
        at: glob of modules, a site, or None for the input.
        ball: how far; with a `box` where inputs have a range.
        steps: ascent steps.
        step_size: of the ascent; see `PGD`.
        start: size of the Gaussian start.
        update: rule of the ascent.
        by: another player instead: `sp.Noise(ball)` is the random control.
        penalty: squared distance of the logits, summed over the classes.
        weight: lambda of the paper.
        share_noise: same dropout in both passes.
        options: go to `Objective`.
    """
    player = by or PGD(ball, steps, step_size, start, update)
    term = Term(
        site_of(at),
        player,
        penalty,
        weight,
        share_noise,
        detach_clean=False,
        payoff="loss",
        supervised=0.5,
        replaces=0.5,
        name="logit_pairing",
    )
    return Objective(model, loss, term, **options)
