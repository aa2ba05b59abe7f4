"""Proper scores of probabilities, and intervals for any figure of them."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .inputs import two_sided


def brier(probabilities: Tensor, targets: Tensor) -> float:
    """Mean squared distance to the right answer, summed over the classes: 0 is perfect, 2 the worst (Brier 1950).

    >>> brier(torch.tensor([[0.5, 0.5]]), torch.tensor([1]))
    0.5

    Args:
        probabilities: `(N, classes)`, or `(N,)` for the probability of class 1 of two.
        targets: `(N,)` class indices.
    """
    probabilities, targets = two_sided(probabilities, targets)
    right = torch.nn.functional.one_hot(targets, probabilities.shape[1])
    return float((probabilities - right).square().sum(1).mean())


def negative_log_likelihood(probabilities: Tensor, targets: Tensor) -> float:
    """Mean of -log of the probability given to the right answer; infinite if one was ruled out.

    >>> round(negative_log_likelihood(torch.tensor([[0.5, 0.5]]), torch.tensor([1])), 4)
    0.6931

    Args: as in `brier`.
    """
    probabilities, targets = two_sided(probabilities, targets)
    return float(-probabilities.gather(1, targets[:, None]).log().mean())


class Interval(NamedTuple):
    """A figure and the interval it would mostly stay in on another sample."""

    value: float
    low: float
    high: float


def bootstrap(
    metric: Callable[[Tensor, Tensor], float],
    probabilities: Tensor,
    targets: Tensor,
    samples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """A figure with its percentile interval over examples drawn again with replacement.

    The plain calibration error grows when examples are drawn twice, so its interval can lie above it: give the debiased one.

    >>> p, y = torch.tensor([0.9, 0.8, 0.3, 0.6]), torch.tensor([1, 1, 0, 0])
    >>> found = bootstrap(brier, p, y, samples=200)
    >>> found.low < found.value < found.high
    True

    Args:
        metric: `(probabilities, targets) -> float`.
        probabilities: `(N, ...)`.
        targets: `(N,)`.
        samples: how often.
        level: share of the drawn figures inside.
        seed: same seed, same interval.
    """
    if samples < 2 or not 0 < level < 1:
        raise ValueError(f"bootstrap(samples={samples}, level={level}): at least 2 samples, and a level inside 0 and 1")
    if not len(targets):
        raise ValueError("bootstrap has no example to draw from")
    generator = torch.Generator("cpu").manual_seed(seed)
    count = len(targets)
    drawn = []
    for _ in range(samples):
        index = torch.randint(count, (count,), generator=generator, device="cpu").to(targets.device)
        drawn.append(metric(probabilities[index], targets[index]))
    figures, tails = (
        torch.tensor(x, dtype=torch.float64, device="cpu") for x in (drawn, [(1 - level) / 2, (1 + level) / 2])
    )
    low, high = torch.quantile(figures, tails).tolist()
    return Interval(metric(probabilities, targets), low, high)
