"""Free adversarial training: FreeLB and FreeAT."""

from typing import Any, Literal

from torch import nn

from ..balls import L2, Ball, Linf
from ..objective import Objective
from ..penalties import Penalty
from ..players import PGD
from ..players.pgd import Update
from ..terms import FreeAT, FreeLB, Term, Weight
from .grammar import Loss, Place, recipe, site_of


@recipe
def free_lb(
    model: nn.Module,
    loss: Loss,
    at: Place = None,
    *,
    ball: Ball = L2(0.3),
    steps: int = 3,
    step_size: float | None = None,
    start: float | Literal["uniform"] = "uniform",
    update: Update = "normalised",
    penalty: Penalty | None = None,
    weight: Weight = 1.0,
    detach_clean: bool | None = None,
    **options: Any,
) -> Objective:
    """FreeLB (Zhu et al. 2020): the gradient is averaged over the K points of an ascent from a uniform start.

    >>> import sparring as sp, torch
    >>> objective = sp.recipes.free_lb(nn.Linear(4, 3), sp.cross_entropy, steps=2)
    >>> for part in objective.steps(torch.randn(2, 4), torch.tensor([0, 2])):
    ...     part.backward()

    Args:
        model: any model.
        loss: per-example loss.
        at: glob of modules, a site, or None for the input.
        ball: how far.
        steps: K points, of which the first is the start.
        step_size: of the ascent; see `PGD`.
        start: "uniform" as in the paper, or the size of a Gaussian start.
        update: see `PGD`; an Adam follower keeps its moments from point to point.
        penalty: None for the published form (supervised loss at every point, no clean loss); a divergence for the regulariser
            CE + weight / K * sum_k penalty(delta^k) that SALT's authors compare with.
        weight: of the perturbed losses.
        detach_clean: cut the clean side of the penalty; None where there are no labels.
        options: go to `Objective`.
    """
    player = PGD(ball, steps, step_size, start, update)
    term = Term(site_of(at), player, penalty, weight, detach_clean=detach_clean, name="free_lb")
    return Objective(model, loss, FreeLB(term), **options)


@recipe
def free_at(
    model: nn.Module,
    loss: Loss,
    at: Place = None,
    *,
    ball: Ball = Linf(0.1),
    steps: int = 3,
    step_size: float | None = None,
    start: float | Literal["uniform"] = 0.0,
    update: Update = "sign",
    weight: Weight = 1.0,
    **options: Any,
) -> Objective:
    """Free adversarial training (Shafahi et al. 2019): K replays of a batch, an update after each, the perturbation carried over.

    >>> import sparring as sp, torch
    >>> model = nn.Linear(4, 3)
    >>> objective, optimizer = sp.recipes.free_at(model, sp.cross_entropy), torch.optim.SGD(model.parameters(), 0.1)
    >>> for part in objective.steps(torch.randn(2, 4), torch.tensor([0, 2])):
    ...     optimizer.zero_grad(); part.backward(); optimizer.step()

    Args:
        model: any model.
        loss: per-example loss.
        at: glob of modules, a site, or None for the input.
        ball: how far.
        steps: K replays.
        step_size: the radius by default, as in the paper.
        start: of the first perturbation.
        update: see `PGD`.
        weight: of the perturbed loss.
        options: go to `Objective`.
    """
    size = ball.radius if step_size is None and ball.radius else step_size
    term = Term(site_of(at), PGD(ball, steps, size, start, update), weight=weight, name="free_at")
    return Objective(model, loss, FreeAT(term), **options)
