"""Learnable Bernoulli dropout as an objective."""

from typing import Any

from torch import nn

from ..estimators import ARM, Estimator
from ..objective import Objective
from ..terms import DropoutKL, LearnedRates, Playable
from ..terms.dropout_kl import Weights
from .grammar import Loss, recipe


@recipe
def learnable_bernoulli(
    model: nn.Module,
    loss: Loss,
    at: str = "**",
    *,
    estimator: Estimator | None = None,
    joint: bool = False,
    prior_scale: float | None = None,
    dataset_size: int | None = None,
    weights: Weights | None = None,
    weight: float = 1.0,
    **options: Any,
) -> Objective:
    """Train a model together with the keep rates of its `BernoulliDropout` layers (eq. 2 and 8).

    The model's gradient comes from one ordinary pass, the rates' gradient from an estimator that needs one more forward
    pass without a graph, started at the first learnable dropout.

    >>> import torch, sparring as sp
    >>> model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3))
    >>> _ = sp.nn.convert(model)
    >>> objective = sp.recipes.learnable_bernoulli(model, sp.cross_entropy, prior_scale=1.0, dataset_size=1000)
    >>> optimizer = torch.optim.Adam(sp.nn.parameter_groups(model, lr=1e-3, rates_lr=1e-2))
    >>> loss = objective(torch.randn(8, 4), torch.randint(3, (8,)))
    >>> loss.backward(); optimizer.step()
    >>> bool((model[2].keep != 0.5).all())
    True

    Args:
        model: holds at least one `BernoulliDropout` (see `sparring.nn.convert`); other dropout and batch norm may stay.
        loss: per-example supervised loss, `loss(outputs, targets) -> (B,)`.
        at: which `BernoulliDropout` layers learn, a glob.
        estimator: `ARM()` by default, the paper's; `DisARM()` costs the same and varies less.
        joint: unbiased rates where batch norm in training mode follows a learnable dropout (see `LearnedRates`).
        prior_scale: standard deviation of the weights' prior: adds the KL of section 2.2; None leaves it out.
        dataset_size: number of training examples, needed with `prior_scale`.
        weights: consuming weights by layer name, where they cannot be found (see `DropoutKL`).
        weight: factor of the rates' gradient; 0 leaves the rates alone.
        options: go to `Objective`.

    Paper: Boluki et al., Learnable Bernoulli Dropout for Bayesian Deep Learning (2020).
    """
    if prior_scale is not None and dataset_size is None:
        raise ValueError("prior_scale adds a KL term, which is divided by the size of the data set; give dataset_size=")
    rates = LearnedRates(at, estimator or ARM(), weight, joint, "learnable_bernoulli")
    for layer in rates.site.modules(model).values():
        layer.guided = True  # type: ignore[assignment]
    prior: tuple[Playable, ...] = ()
    if prior_scale is not None and dataset_size is not None:
        prior = (DropoutKL(prior_scale, dataset_size, at, weights),)
    return Objective(model, loss, rates, *prior, **options)
