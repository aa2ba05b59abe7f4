"""Virtual adversarial training."""

from typing import Any

from torch import nn

from ..balls import L2, Ball
from ..objective import Objective
from ..penalties import Penalty, kl
from ..players import FastGradient, Player
from ..sites import Scores
from ..terms import Term, Weight
from .grammar import Loss, Place, recipe, site_of

LOOK = 5.0  # radii from the example to the point where the direction is sought
LOOK_AT_SCORES = 1.0  # farther out a softmax over few positions has made up its mind and has no slope left


@recipe
def vat(
    model: nn.Module,
    loss: Loss,
    at: Place = None,
    *,
    ball: Ball = L2(1.0),
    steps: int = 1,
    start: float | None = None,
    by: Player | None = None,
    penalty: Penalty = kl,
    weight: Weight = 1.0,
    detach_clean: bool | None = True,
    share_noise: bool = True,
    **options: Any,
) -> Objective:
    """Virtual adversarial training (Miyato et al. 2018, Algorithm 1): KL to the worst nearby point; needs no labels.

    >>> import sparring as sp, torch
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    >>> objective = sp.recipes.vat(model, sp.cross_entropy, ball=sp.L2(0.5))
    >>> more = torch.randn(20, 4)  # examples without labels
    >>> objective(torch.randn(2, 4), torch.tensor([0, 2]), unlabelled=more).backward()
    >>> round(objective.diagnostics["vat/norm"], 3)
    0.5

    Args:
        model: any classifier; a regressor with `penalty=sp.squared_error`.
        loss: per-example loss.
        at: glob of modules, a site, or None for the input.
        ball: how far.
        steps: power iterations, each a look at the gradient along the direction found last.
        start: distance of the look along the random direction (the paper's xi). The default is five times the radius, and the radius
            itself at attention scores: a distance where the divergence has a slope worth following, see the page on few labels.
        by: another player instead: `sp.Noise(ball)` is the random control, `sp.PGD(ball, steps=2)` an ascent.
        penalty: distance between clean and perturbed predictions.
        weight: of the penalty.
        detach_clean: the clean prediction is a constant target, as in the paper.
        share_noise: same dropout in both passes.
        options: go to `Objective`.
    """
    site = site_of(at)
    if start is None:
        start = (LOOK_AT_SCORES if isinstance(site, Scores) else LOOK) * (ball.radius or 1.0)
    term = Term(site, by or FastGradient(ball, start, steps), penalty, weight, share_noise, detach_clean, name="vat")
    return Objective(model, loss, term, **options)
