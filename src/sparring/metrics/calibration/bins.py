"""Predictions sorted by their confidence into bins: the reliability diagram and the errors read off it."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .inputs import two_sided


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
    def bias(self) -> Tensor:
        """What chance alone adds to each gap `(bins,)`: an accuracy measured on n examples strays by its standard error.

        The mean of a folded normal less its centre: E|N(gap, accuracy (1 - accuracy) / n)| - gap.
        """
        deviation = (self.accuracy * (1 - self.accuracy) / self.counts).sqrt()
        ratio = (self.gaps / deviation).nan_to_num(nan=torch.inf)  # no deviation: nothing strays
        density = (-ratio.square() / 2).exp() * math.sqrt(2 / math.pi)
        excess = deviation * density - self.gaps * torch.erfc(ratio / math.sqrt(2))
        return excess.masked_fill((self.counts == 0) | (deviation == 0), 0.0)

    @property
    def debiased_ece(self) -> float:
        """The calibration error less an estimate of what chance adds to it (Kumar et al. 2019, appendix G); it can fall below 0."""
        return self.ece - float((self.bias * self.counts).sum() / self.counts.sum().clamp(min=1))

    @property
    def rms(self) -> float:
        """Root mean squared gap, chance taken out of the square (Kumar et al. 2019, section 5); 0 where chance is more."""
        chance = self.accuracy * (1 - self.accuracy) / (self.counts - 1).clamp(min=1)
        squares = (self.gaps.square() - chance).masked_fill(self.counts == 0, 0.0)
        return math.sqrt(max(0.0, float((squares * self.counts).sum() / self.counts.sum().clamp(min=1))))

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
    probabilities, targets = two_sided(probabilities, targets)
    confidence, predicted = probabilities.max(1)
    return binned(confidence, (predicted == targets).double(), bins, equal_mass)


def binned(confidence: Tensor, right: Tensor, bins: int, equal_mass: bool) -> Reliability:
    """The diagram of how often something was right, `(N,)`, against how sure one was of it."""
    if bins < 1:
        raise ValueError(f"bins={bins} must be at least 1")
    # Not linspace: it rounds some edges below the number they stand for, and 0.55 would leave (0.5, 0.55].
    edges = torch.arange(bins + 1, dtype=torch.float64, device=confidence.device) / bins
    if equal_mass:
        edges = torch.quantile(confidence, edges)
    index = torch.bucketize(confidence, edges[1:-1].contiguous())  # right=False: x <= edge stays left
    counts = torch.bincount(index, minlength=bins)
    means = [torch.bincount(index, values, bins) / counts for values in (confidence, right)]
    return Reliability(edges, counts, *means)


def expected_calibration_error(
    probabilities: Tensor, targets: Tensor, bins: int = 10, equal_mass: bool = False, debiased: bool = False
) -> float:
    """Mean gap between confidence and accuracy over bins of confidence (SALT, eq. 10; Guo et al. 2017).

    >>> expected_calibration_error(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1]))
    0.5

    Args:
        probabilities: `(N, classes)`, or `(N,)` for the probability of class 1 of two.
        targets: `(N,)` class indices.
        bins: how many.
        equal_mass: bins of equal counts instead of equal width.
        debiased: less an estimate of what chance adds; the plain error of a perfect model is above 0 on any finite sample.
    """
    diagram = reliability(probabilities, targets, bins, equal_mass)
    return diagram.debiased_ece if debiased else diagram.ece


def classwise_calibration_error(
    probabilities: Tensor, targets: Tensor, bins: int = 10, equal_mass: bool = False, debiased: bool = False
) -> float:
    """Mean over the classes of the gap between a class's probability and how often it is the answer (Kull et al. 2019).

    >>> p = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    >>> classwise_calibration_error(p, torch.tensor([0, 1]))
    0.5

    Args: as in `expected_calibration_error`.
    """
    probabilities, targets = two_sided(probabilities, targets)
    diagrams = [
        binned(probabilities[:, k].contiguous(), (targets == k).double(), bins, equal_mass)
        for k in range(probabilities.shape[1])
    ]
    return sum(d.debiased_ece if debiased else d.ece for d in diagrams) / len(diagrams)
