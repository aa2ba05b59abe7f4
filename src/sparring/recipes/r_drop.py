"""Noise alone: two passes that differ in dropout, and sure predictions."""

from functools import partial
from typing import Any

from torch import nn

from ..objective import Objective
from ..penalties import Penalty, symmetric_kl
from ..terms import Entropy, Term, Weight
from ..terms.playable import at_step
from .grammar import Loss, recipe


@recipe
def r_drop(
    model: nn.Module,
    loss: Loss,
    at: None = None,
    *,
    penalty: Penalty = symmetric_kl,
    weight: Weight = 1.0,
    **options: Any,
) -> Objective:
    """R-Drop (Liang et al. 2021): two passes that differ in dropout only; CE1 + CE2 + weight / 2 * symmetric KL.

    The noise-only control of every adversarial regulariser.

    >>> import sparring as sp, torch
    >>> model = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3))
    >>> sp.recipes.r_drop(model, sp.cross_entropy)(torch.randn(2, 4), torch.tensor([0, 2])).backward()

    Args:
        model: draws noise of its own (dropout).
        loss: per-example loss.
        at: nowhere: only the model's own noise changes.
        penalty: distance between the two predictions.
        weight: alpha, of which half is charged.
        options: go to `Objective`.
    """
    if at is not None:
        raise TypeError(f"r_drop(at={at!r}): it perturbs nothing but the model's own noise; leave out at")
    half: Weight = partial(_half, weight) if callable(weight) else weight / 2
    term = Term(None, None, penalty, half, share_noise=False, supervised=1.0, name="r_drop")
    return Objective(model, loss, term, **options)


def _half(weight: Weight, step: int) -> float:
    return at_step(weight, step) / 2


@recipe
def entropy(model: nn.Module, loss: Loss, at: None = None, *, weight: Weight = 1.0, **options: Any) -> Objective:
    """Entropy minimisation (Grandvalet and Bengio 2005): predictions on data without labels shall be sure.

    Goes beside a method that keeps them smooth: `vat(model, loss) + entropy(model, loss)` is VAT + EntMin (Miyato et al. 2018).

    >>> import sparring as sp, torch
    >>> model = nn.Linear(4, 3)
    >>> both = sp.recipes.vat(model, sp.cross_entropy) + sp.recipes.entropy(model, sp.cross_entropy)
    >>> both(torch.randn(2, 4), torch.tensor([0, 2]), unlabelled=torch.randn(8, 4)).backward()

    Args:
        model: any classifier.
        loss: per-example loss.
        at: nowhere: nothing is perturbed.
        weight: of the entropy.
        options: go to `Objective`.
    """
    if at is not None:
        raise TypeError(f"entropy(at={at!r}): nothing is perturbed; leave out at")
    return Objective(model, loss, Entropy(weight), **options)
