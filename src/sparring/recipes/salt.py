"""SALT: adversarial regularisation as a Stackelberg game."""

from typing import Any

from torch import nn

from ..balls import L2, Ball
from ..objective import Objective
from ..penalties import Penalty, kl
from ..players import PGD, Player
from ..players.pgd import Start, Update
from ..players.player import Unroll
from ..terms import Term, Weight
from .grammar import Loss, Place, recipe, site_of


@recipe
def salt(
    model: nn.Module,
    loss: Loss,
    at: Place = None,
    *,
    ball: Ball = L2(1.0),
    steps: int = 1,
    step_size: float | None = None,
    start: Start = None,
    update: Update = "normalised",
    unroll: Unroll = "autograd",
    interaction: float | None = None,
    by: Player | None = None,
    penalty: Penalty = kl,
    weight: Weight = 1.0,
    detach_clean: bool | None = None,
    share_noise: bool = True,
    **options: Any,
) -> Objective:
    """Stackelberg adversarial regularisation (Zuo et al. 2021): the model differentiates through its opponent's ascent.

    >>> import sparring as sp, torch
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    >>> objective = sp.recipes.salt(model, sp.cross_entropy, ball=sp.L2(0.5), unroll="finite_difference")
    >>> objective(torch.randn(2, 4), torch.tensor([0, 2])).backward()

    Args:
        model: any model; exact unrolling needs one that can be differentiated twice.
        loss: per-example loss.
        at: glob of modules, a site, or None for the input.
        ball: radius epsilon; the projection is part of every unrolled step (eq. 4).
        steps: K.
        step_size: eta; see `PGD`.
        start: sigma of the Gaussian start (the paper's is 1e-5); by default a tenth of the radius in a random direction. So near
            to the clean point that single precision has no slope but rounding, a normalised step counts as a constant.
        update: "normalised", "raw" (the paper's SGD follower, needs `step_size`), "adam", "sign".
        unroll: "autograd" (exact, double backward), "finite_difference" (cheaper, any model), or False: the same ascent as a
            constant, which is what the Stackelberg gradient is to be compared with.
        interaction: how much of the derivative through the ascent counts, from 0 (the same as `unroll=False`) to 1 (eq. 6). None
            counts all of it for examples with labels, as in the paper, and none of it for those without: there nothing holds the
            predictions, and it did harm wherever it was tried (see the page on SALT).
        by: another player instead: `sp.Noise(ball)` is the random control.
        penalty: KL(clean || perturbed) as in the paper; `symmetric_kl`, or `squared_error` for regression.
        weight: alpha of eq. 5.
        detach_clean: cut the leader's clean side. The paper's equations do not; None does so where there are no labels.
        share_noise: same dropout in all passes.
        options: go to `Objective`.
    """
    player = by or PGD(ball, steps, step_size, start, update, unroll, interaction)
    term = Term(site_of(at), player, penalty, weight, share_noise, detach_clean, name="salt")
    return Objective(model, loss, term, **options)
