"""Adversarial weight perturbation: a flat loss around the weights, at the adversarial points of the inputs."""

from typing import Any

from torch import nn

from ..balls import L2, Ball, Linf
from ..objective import Objective
from ..players import PGD, FastGradient, Player
from ..players.pgd import Update
from ..sites import Weights
from ..terms import Weight
from ..terms.weight_perturbation import WeightPerturbation
from .grammar import Loss, Place, recipe, site_of


@recipe
def adversarial_weight_perturbation(
    model: nn.Module,
    loss: Loss,
    at: Place = None,
    *,
    ball: Ball = Linf(8 / 255),
    steps: int = 10,
    step_size: float | None = None,
    by: Player | None = None,
    weights: str = "**",
    weight_ball: Ball = L2(5e-3),
    weight: Weight = 1.0,
    share_noise: bool = True,
    **options: Any,
) -> Objective:
    """AWP (Wu, Xia and Wang 2020, eq. 7-10): the loss at adversarial inputs under the worst nearby weights.

    >>> import sparring as sp, torch
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> objective = sp.recipes.adversarial_weight_perturbation(model, sp.cross_entropy, ball=sp.Linf(0.1), steps=2)
    >>> objective(torch.rand(2, 4), torch.tensor([0, 2])).backward()

    Args:
        model: any classifier.
        loss: per-example loss; at the perturbed point it replaces the clean one.
        at: glob of modules, a site, or None for the input.
        ball: how far the inputs move; `sp.Linf(0.0)` moves the weights alone (sharpness-aware minimisation, layer by layer).
        steps: ascent steps on the inputs.
        step_size: of that ascent; see `PGD`.
        by: another player at the inputs.
        weights: glob of the modules whose weights (of two dimensions and more) are moved.
        weight_ball: gamma, the norm of a layer's change relative to the layer's own.
        weight: 0 leaves the plain loss.
        share_noise: same dropout in all passes.
        options: go to `Objective`.
    """
    rule: Update = "sign" if isinstance(ball, Linf) else "normalised"
    player = by or (PGD(ball, steps, step_size, 1e-3, rule) if ball.radius else None)
    term = WeightPerturbation(
        site_of(at), player, Weights(weights), FastGradient(weight_ball), weight=weight, share_noise=share_noise
    )
    return Objective(model, loss, term, **options)
