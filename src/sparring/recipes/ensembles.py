"""Simultaneous training of an ensemble: members' losses, diversity terms, adversarial training, in any combination."""

from functools import partial
from typing import Literal

from ..ensembles import Ensemble, member_cross_entropy, members_of
from ..objective import Objective
from ..players import Player
from ..sites import Input
from ..sites.members import MemberInput
from ..terms import Playable, Term, Weight


def simultaneous(
    ensemble: Ensemble,
    *terms: Playable,
    reduce: Literal["mean", "sum"] = "mean",
    by: Player | None = None,
    craft: Literal["ensemble", "member"] = "ensemble",
    weight: Weight = 1.0,
    replaces: float = 0.0,
) -> Objective:
    """Train all members at once on each member's own cross-entropy, plus whatever ties them together.

    >>> import torch, sparring as sp
    >>> from torch import nn
    >>> nets = [nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)) for _ in range(3)]
    >>> ensemble = sp.ensembles.Ensemble(nets, head="2", dropout=sp.ensembles.LaplacePriorityDropout())
    >>> fgsm = sp.FastGradient(sp.Linf(0.03))
    >>> objective = sp.recipes.simultaneous(ensemble, sp.ensembles.DEG(), by=fgsm, craft="member")
    >>> objective(torch.rand(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])).backward()

    Args:
        ensemble: an ``Ensemble``; its dropout is part of it.
        terms: diversity terms (``ADP``, ``DEG``, ``TRS``) or any others.
        reduce: members' losses averaged ("mean", priority dropout and DEG) or added ("sum", ADP and TRS).
        by: a player at the input, such as ``FastGradient(Linf(eps))``; None: no adversarial training.
        craft: one perturbation on the ensemble's training loss, or one for each "member" on its own loss.
        weight: factor of the loss at the perturbed points.
        replaces: share of the clean loss that it takes over; 1 trains on the perturbed points only.

    Paper: Wu et al., "Deep Ensemble Robustness by Adaptive Sampling in Dropout-Based Simultaneous Training",
    sections 3 and 5.2.
    """
    if not isinstance(ensemble, Ensemble):
        raise TypeError(f"ensemble is a {type(ensemble).__name__}; wrap the networks in sparring.ensembles.Ensemble")
    if craft not in ("ensemble", "member"):
        raise ValueError(f'craft={craft!r} is unknown; choose "ensemble" or "member"')
    attack = []
    if by is not None:
        site = Input() if craft == "ensemble" else MemberInput()
        attack = [Term(at=site, by=by, weight=weight, replaces=replaces, name="adversarial")]
    loss = partial(member_cross_entropy, reduce=reduce)
    return Objective(ensemble, loss, *terms, *attack, outputs=members_of)
