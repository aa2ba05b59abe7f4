"""Train on the worst point of a ball around each example."""

from typing import Any

from torch import nn

from ..balls import L2, Ball
from ..objective import Objective
from ..players import PGD, FastGradient, Player
from ..players.pgd import Update
from ..terms import Term, Weight
from .grammar import Loss, Place, recipe, site_of


@recipe
def adversarial_training(
    model: nn.Module,
    loss: Loss,
    at: Place = None,
    *,
    ball: Ball = L2(1.0),
    steps: int = 1,
    step_size: float | None = None,
    start: float = 0.0,
    by: Player | None = None,
    weight: Weight = 1.0,
    share_noise: bool = True,
    **options: Any,
) -> Objective:
    """Clean loss plus the loss at the worst point of a ball (Goodfellow et al. 2015; Miyato et al. 2017 on embeddings: Word AT).

    >>> import sparring as sp, torch
    >>> model = nn.Sequential(nn.Linear(4, 3))
    >>> objective = sp.recipes.adversarial_training(model, sp.cross_entropy, ball=sp.Linf(0.1))
    >>> objective(torch.randn(2, 4), torch.tensor([0, 2])).backward()

    Args:
        model: any classifier or regressor.
        loss: per-example loss.
        at: glob of modules, a site, or None for the input.
        ball: how far; `sp.Linf(8/255, box=(0, 1))` keeps images valid.
        steps: 1 is the fast gradient step of full radius, more are projected ascent (Madry et al. 2018).
        step_size: of the ascent; see `PGD`.
        start: size of the random start of the ascent.
        by: another player instead: `sp.Noise(ball)` is the random control.
        weight: of the perturbed loss.
        share_noise: same dropout in both passes.
        options: go to `Objective`.
    """
    rule: Update = "normalised" if isinstance(ball, L2) else "sign"
    ascent = FastGradient(ball, start) if steps == 1 else PGD(ball, steps, step_size, start, rule)
    term = Term(site_of(at), by or ascent, weight=weight, share_noise=share_noise, name="adversarial_training")
    return Objective(model, loss, term, **options)
