"""Robust training that trades accuracy on clean data against stability around it: TRADES and MART."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..balls import Ball, Linf
from ..objective import Objective
from ..penalties import Penalty, full_precision, kl
from ..players import PGD, Player
from ..players.pgd import Update
from ..terms import Term, Weight
from .grammar import Loss, Place, recipe, site_of


@recipe
def trades(
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
    penalty: Penalty = kl,
    weight: Weight = 6.0,
    share_noise: bool = True,
    **options: Any,
) -> Objective:
    """TRADES (Zhang et al. 2019, eq. 5): clean loss plus 1/lambda times the divergence to the worst nearby prediction.

    >>> import sparring as sp, torch
    >>> model = nn.Sequential(nn.Linear(4, 3))
    >>> objective = sp.recipes.trades(model, sp.cross_entropy, ball=sp.Linf(0.1, box=(0, 1)), steps=3)
    >>> objective(torch.rand(2, 4), torch.tensor([0, 2])).backward()

    Args:
        model: any classifier.
        loss: per-example loss.
        at: glob of modules, a site, or None for the input.
        ball: how far; with a `box` where inputs have a range.
        steps: ascent steps.
        step_size: of the ascent; see `PGD`.
        start: size of the Gaussian start (.001 in the paper's code).
        update: rule of the ascent.
        by: another player instead: `sp.Noise(ball)` is the random control.
        penalty: KL(clean || perturbed); the clean side is trained, too.
        weight: 1/lambda of the paper, 1 to 6.
        share_noise: same dropout in both passes.
        options: go to `Objective`.
    """
    player = by or PGD(ball, steps, step_size, start, update)
    term = Term(site_of(at), player, penalty, weight, share_noise, detach_clean=False, name="trades")
    return Objective(model, loss, term, **options)


@recipe
def mart(
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
    weight: float = 5.0,
    share_noise: bool = True,
    **options: Any,
) -> Objective:
    """MART (Wang et al. 2020, eq. 11): a boosted cross-entropy at the adversarial point, and a divergence that counts more
    where the clean example is misclassified. Its player climbs the supervised loss; it charges something else.

    >>> import sparring as sp, torch
    >>> model = nn.Sequential(nn.Linear(4, 3))
    >>> objective = sp.recipes.mart(model, sp.cross_entropy, ball=sp.Linf(0.1), steps=2)
    >>> objective(torch.rand(2, 4), torch.tensor([0, 2])).backward()

    Args:
        model: a classifier.
        loss: per-example loss that the player climbs; the method's own loss replaces it in training.
        at: glob of modules, a site, or None for the input.
        ball: how far; with a `box` where inputs have a range.
        steps: ascent steps.
        step_size: of the ascent; see `PGD`.
        start: size of the Gaussian start.
        update: rule of the ascent.
        by: another player instead: `sp.Noise(ball)` is the random control.
        weight: lambda of eq. 11; 0 leaves the plain loss.
        share_noise: same dropout in both passes.
        options: go to `Objective`.
    """
    player = by or PGD(ball, steps, step_size, start, update)
    charged = partial(mart_charge, weight=weight)
    term = Term(
        site_of(at),
        player,
        charged,
        1.0 if weight else 0.0,
        share_noise,
        detach_clean=False,
        payoff="loss",
        replaces=1.0,
        name="mart",
    )
    return Objective(model, loss, term, **options)


def mart_charge(clean: Tensor, perturbed: Tensor, targets: Tensor, weight: float = 5.0) -> Tensor:
    """BCE(p', y) + weight * KL(p || p') * (1 - p_y) per example (eq. 8-11).

    >>> mart_charge(torch.tensor([[9.0, 0.0]]), torch.tensor([[9.0, 0.0]]), torch.tensor([0])) < 1e-3
    tensor([True])
    """
    logs = full_precision(perturbed).log_softmax(-1)
    others = logs.masked_fill(F.one_hot(targets, logs.shape[-1]).bool(), -torch.inf).amax(-1)
    true = logs.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    boosted = -true - torch.log1p(-others.exp().clamp_max(1 - 1e-7))  # margin of the best wrong class
    doubt = 1 - full_precision(clean).softmax(-1).gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return boosted + weight * kl(clean, perturbed) * doubt
