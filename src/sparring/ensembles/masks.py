"""Turning keep rates into masks, and plain dropout in the same form as the baseline."""

import torch
from torch import Tensor, nn


def mask_features(features: list[Tensor], keep: list[Tensor], rescale: bool) -> list[Tensor]:
    """Keep every unit with its own probability; the draws come from torch's global generator.

    >>> ones = torch.ones(2, 3)
    >>> [out] = mask_features([ones], [ones], rescale=False)
    >>> bool(torch.equal(out, ones))
    True

    Args:
        features: what the heads would read, each (B, units).
        keep: keep rates of the same shapes, constants for autograd.
        rescale: divide what is kept by its keep rate, so that the expectation is unchanged.
    """
    masked = []
    for tensor, rate in zip(features, keep, strict=True):
        mask = (torch.rand_like(rate) < rate).to(rate.dtype)
        if rescale:
            mask = torch.where(rate > 0, mask / rate, mask)
        masked.append(tensor * mask.to(tensor.dtype))
    return masked


class EnsembleDropout(nn.Module):
    """Plain dropout on every member's features: the baseline a priority dropout has to beat.

    >>> dropout = EnsembleDropout(keep=0.5)
    >>> a, b = dropout([torch.ones(4, 6), torch.ones(4, 3)])
    >>> sorted({*a.unique().tolist(), 0.0, 2.0}), tuple(b.shape)
    ([0.0, 2.0], (4, 3))

    Args:
        keep: probability of keeping a unit, in (0, 1].
        rescale: divide by ``keep`` (torch's convention). False multiplies by the bare 0/1 mask and does nothing in
            evaluation, as the priority dropouts' paper mode does: logits grow at test time.
    """

    def __init__(self, keep: float = 0.5, rescale: bool = True) -> None:
        super().__init__()
        if not 0 < keep <= 1:
            raise ValueError(f"keep={keep} is no probability; choose 0 < keep <= 1")
        self.keep, self.rescale = keep, rescale

    def keep_rates(self, features: list[Tensor]) -> list[Tensor]:
        """The same rate for every unit, shaped like the features."""
        return [torch.full_like(tensor, self.keep) for tensor in features]

    def forward(self, features: list[Tensor]) -> list[Tensor]:
        if not self.training:
            return features
        return mask_features(features, self.keep_rates(features), self.rescale)

    def extra_repr(self) -> str:
        return f"keep={self.keep}, rescale={self.rescale}"
