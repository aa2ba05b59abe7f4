"""Cutoff: agree with yourself where a part of the sentence is erased."""

from typing import Any, Literal

from torch import nn

from ..objective import Objective
from ..penalties import Penalty, js
from ..players import Cutoff
from ..sites import Mask, Site
from ..terms import Term, Weight
from .grammar import Loss, recipe


@recipe
def cutoff(
    model: nn.Module,
    loss: Loss,
    at: str | Site,
    *,
    keep: float = 0.9,
    unit: Literal["token", "span", "feature"] = "span",
    penalty: Penalty = js,
    weight: Weight = 1.0,
    detach_clean: bool | None = None,
    share_noise: bool = False,
    **options: Any,
) -> Objective:
    """Cutoff (Shen et al. 2020): `CE(x) + CE(x') + weight * JS(p(x), p(x'))`, where x' has a part of its embeddings erased.

    One erased view, so that the paper's divergence to the mean of all views is the JS of two. Embeddings are erased behind their
    dropout; the authors' code also hides those positions from attention, which a mask does not.

    >>> import sparring as sp, torch
    >>> model = nn.Sequential(nn.Embedding(9, 4), nn.Dropout(0.1), nn.Flatten(), nn.Linear(24, 3))
    >>> objective = sp.recipes.cutoff(model, sp.cross_entropy, at="1", keep=0.5)
    >>> objective(torch.randint(9, (2, 6)), torch.tensor([0, 2])).backward()

    Args:
        model: has a dropout layer behind its embeddings, of any rate.
        loss: per-example loss.
        at: glob of that layer (in BERT "bert.embeddings.dropout"), or any mask site whose masks are (examples, positions, features).
        keep: share of the sentence that stays.
        unit: what is erased: "token", "span" (adjacent tokens) or "feature" (columns of the embeddings).
        penalty: distance between the two predictions.
        weight: of the penalty.
        detach_clean: the full sentence is a constant target; None: where there are no labels.
        share_noise: whether dropout elsewhere is the same in both passes; the published method draws it anew.
        options: go to `Objective`.
    """
    site = Mask(at) if isinstance(at, str) else at
    player = Cutoff(keep, unit)
    term = Term(site, player, penalty, weight, share_noise, detach_clean, supervised=1.0, name="cutoff")
    return Objective(model, loss, term, **options)
