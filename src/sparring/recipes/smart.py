"""SMART: smoothness and a proximal term."""

from collections.abc import Callable
from typing import Any

from torch import nn

from ..balls import Ball, Linf
from ..objective import Objective
from ..penalties import Penalty, symmetric_kl
from ..players import PGD, Player
from ..players.pgd import Update
from ..terms import Proximal, Term, Weight
from .grammar import Loss, Place, recipe, site_of


def slower_later(updates: int) -> float:
    """SMART's decay of the averaged weights: .99 for the first thousand updates, then .999."""
    return 0.99 if updates < 1000 else 0.999


@recipe
def smart(
    model: nn.Module,
    loss: Loss,
    at: Place = None,
    *,
    ball: Ball = Linf(1e-5),
    steps: int = 1,
    step_size: float | None = 1e-3,
    start: float = 1e-5,
    update: Update = "normalised",
    by: Player | None = None,
    penalty: Penalty = symmetric_kl,
    weight: Weight = 1.0,
    detach_clean: bool | None = None,
    share_noise: bool = True,
    proximal_weight: float = 1.0,
    decay: float | Callable[[int], float] = slower_later,
    **options: Any,
) -> Objective:
    """SMART (Jiang et al. 2020): smoothness (ascent, symmetric KL) plus a Bregman proximal term against averaged weights.

    The published radius and step are tiny; see the SALT page for what that means and try `ball=sp.L2(0.1), step_size=None`.

    >>> import sparring as sp, torch
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    >>> objective = sp.recipes.smart(model, sp.cross_entropy, ball=sp.L2(0.5), step_size=None)
    >>> objective(torch.randn(2, 4), torch.tensor([0, 2])).backward()
    >>> "proximal/penalty" in objective.diagnostics
    True

    Args:
        model: any model; its weights are averaged in the objective, which is what to save.
        loss: per-example loss.
        at: glob of modules, a site, or None for the input.
        ball: radius of the smoothness term (eq. 2).
        steps: ascent steps.
        step_size: of the ascent; None suits it to the radius.
        start: sigma of the Gaussian start.
        update: see `PGD`.
        by: another player instead: `sp.Noise(ball)` is the random control.
        penalty: of both terms.
        weight: lambda_s, of the smoothness term.
        detach_clean: cut the clean side of the smoothness term; None where there are no labels.
        share_noise: same dropout in all passes.
        proximal_weight: mu, weight of the proximal term (eq. 4); 0 leaves it out, as public re-implementations do.
        decay: of the average, a number or a function of the number of updates.
        options: go to `Objective`.
    """
    player = by or PGD(ball, steps, step_size, start, update)
    smooth = Term(site_of(at), player, penalty, weight, share_noise, detach_clean, name="smart")
    return Objective(model, loss, smooth, Proximal(model, proximal_weight, penalty, decay), **options)
