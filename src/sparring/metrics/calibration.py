"""Calibration: does a confidence of 0.8 come true eight times out of ten?"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Reliability:
    """A reliability diagram as data, one entry a bin; empty bins hold NaN means and count 0.

    Attributes:
        edges: `(bins + 1,)` bin borders on the confidence axis.
        counts: `(bins,)` examples in each bin.
        confidence: `(bins,)` their mean confidence.
        accuracy: `(bins,)` their accuracy.
    """

    edges: Tensor
    counts: Tensor
    confidence: Tensor
    accuracy: Tensor

    @property
    def gaps(self) -> Tensor:
        """`|accuracy - confidence|` a bin, 0 where it is empty; NaN where a probability in it is."""
        return (self.accuracy - self.confidence).abs().masked_fill(self.counts == 0, 0.0)

    @property
    def ece(self) -> float:
        """Expected calibration error: the gaps weighted by the share of examples."""
        return float((self.gaps * self.counts).sum() / self.counts.sum().clamp(min=1))

    @property
    def mce(self) -> float:
        """Maximum calibration error: the largest gap of a bin that is not empty."""
        return float(self.gaps.max())


def reliability(probabilities: Tensor, targets: Tensor, bins: int = 10, equal_mass: bool = False) -> Reliability:
    """Sort predictions by confidence into bins: the data of a reliability diagram.

    >>> probabilities = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.4, 0.6]])
    >>> diagram = reliability(probabilities, torch.tensor([0, 0, 1, 0]), bins=2)
    >>> diagram.counts.tolist(), round(diagram.ece, 4)
    ([0, 4], 0.0)

    Args:
        probabilities: `(N, classes)`, or `(N,)` for the probability of class 1 of two.
        targets: `(N,)` class indices.
        bins: how many; the intervals are open on the left, `(0.1, 0.2]`.
        equal_mass: bins of equal counts instead of equal width.
    """
    if bins < 1:
        raise ValueError(f"bins={bins} must be at least 1")
    if probabilities.dim() == 1:
        probabilities = torch.stack([1 - probabilities, probabilities], 1)
    if probabilities.dim() != 2 or targets.shape != probabilities.shape[:1]:
        raise ValueError(
            f"probabilities {tuple(probabilities.shape)}, targets {tuple(targets.shape)}: must be (N, classes) and (N,)"
        )
    confidence, predicted = probabilities.detach().double().max(1)
    right = (predicted == targets).double()
    if equal_mass and confidence.numel():
        edges = torch.quantile(
            confidence, torch.linspace(0, 1, bins + 1, dtype=torch.float64, device=confidence.device)
        )
    else:
        edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64, device=confidence.device)
    index = torch.bucketize(confidence, edges[1:-1].contiguous())  # right=False: x <= edge stays left
    counts = torch.bincount(index, minlength=bins)
    means = [torch.bincount(index, values, bins) / counts for values in (confidence, right)]
    return Reliability(edges, counts, *means)


def expected_calibration_error(
    probabilities: Tensor, targets: Tensor, bins: int = 10, equal_mass: bool = False
) -> float:
    """Mean gap between confidence and accuracy over bins of confidence.

    >>> expected_calibration_error(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1]))
    0.5

    Args: as in `reliability`.
    """
    return reliability(probabilities, targets, bins, equal_mass).ece
