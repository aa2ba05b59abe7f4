"""Fitting the sharpness of Laplace priority dropout to a wanted mean keep rate."""

import torch
from torch import Tensor

from .laplace import LaplacePriorityDropout


@torch.no_grad()
def calibrate_gamma(dropout: LaplacePriorityDropout, features: list[Tensor], keep: float) -> float:
    """Find the gamma at which active units are kept with probability ``keep`` on average, and set it.

    The paper never states gamma, and what it does depends on the scale of the features: this makes it comparable.

    >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
    <torch._C.Generator object at ...>
    >>> dropout = LaplacePriorityDropout()
    >>> features = [torch.rand(64, 32) for _ in range(3)]
    >>> gamma = calibrate_gamma(dropout, features, keep=0.6)
    >>> round(float(torch.cat(dropout.keep_rates(features)).mean()), 3)
    0.6

    Args:
        dropout: the module whose ``gamma`` is set.
        features: what enters the heads on a representative batch, K tensors (B, units).
        keep: wanted mean over the active units. It must lie between what gamma = infinity leaves (units in their
            member's own bin stay at the highest rate) and what gamma = 0 gives.
    """
    taken, distance = dropout.bin_distances(features)
    distance, units = distance.double(), taken.counts.double()
    if not bool(units.any()):
        raise ValueError(f"no unit is above threshold={dropout.threshold}; there is nothing to calibrate on")

    def mean_keep(gamma: float) -> float:
        return float((dropout.rates_of(distance, gamma) * units).sum() / units.sum())

    low, high = 0.0, 1.0
    most, least = mean_keep(0.0), mean_keep(1e30)
    if not least <= keep <= most:
        raise ValueError(f"keep={keep} is out of reach on these features; gamma can give {least:.4f} to {most:.4f}")
    while mean_keep(high) > keep and high < 1e30:
        low, high = high, high * 4
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if mean_keep(middle) > keep else (low, middle)
    dropout.gamma.fill_(high)
    return high
