"""What a comparison says: means, spreads, and paired differences with their confidence intervals.

>>> table = paired([3.0, 2.8, 3.4], [2.0, 2.1, 2.3])
>>> round(table.mean, 3), [round(end, 3) for end in table.interval]
(-0.933, [-1.45, -0.416])
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import stdtr, stdtrit  # Student's distribution and its inverse

ROUNDING = 1e-12  # of the figures: a difference below that is none


@dataclass(frozen=True)
class Difference:
    """A method minus the baseline, seed by seed. `interval` is None with fewer than two seeds.

    Differences that are all alike have no spread to test with: their p-value is None, unless they are all 0.
    """

    mean: float
    interval: tuple[float, float] | None
    p_value: float | None
    adjusted: float | None = None  # the p-value after Holm's correction for the other methods of the table
    pairs: int = 0  # seeds that both have

    @property
    def clear(self) -> bool:
        """Whether it is told apart from zero at 5 %, with Holm's correction where several methods were compared."""
        p_value = self.p_value if self.adjusted is None else self.adjusted
        return p_value is not None and p_value < 0.05


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment: the k-th smallest of m times (m - k + 1), never below the one before it; of NaN it is 1.

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    known = [1.0 if math.isnan(p) else p for p in p_values]  # NaN has no place in an order
    order = sorted(range(len(known)), key=lambda place: known[place])
    adjusted, largest = [0.0] * len(known), 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, known[place] * (len(known) - rank)))
        adjusted[place] = largest
    return adjusted


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean; nan of nothing."""
    return math.fsum(values) / len(values) if values else math.nan


def spread(values: Sequence[float]) -> float | None:
    """The sample standard deviation; None with fewer than two values.

    >>> spread([1.0, 3.0]) == 2**0.5
    True
    """
    if len(values) < 2:
        return None
    centre = mean(values)
    return math.sqrt(math.fsum((value - centre) ** 2 for value in values) / (len(values) - 1))


def paired(baseline: Sequence[float], method: Sequence[float], confidence: float = 0.95) -> Difference:
    """The paired difference `method - baseline` with Student's t interval and two-sided p-value.

    >>> paired([0.1 + 0.2, 0.5], [0.3, 0.5]).mean, paired([56.4, 60.1, 50.2], [56.5, 60.0, 50.2]).mean
    (0.0, 0.0)

    Args:
        baseline: one figure per seed.
        method: the same seeds in the same order.
        confidence: of the interval.
    """
    if len(baseline) != len(method):
        raise ValueError(f"paired needs the same seeds on both sides, got {len(baseline)} and {len(method)}")
    noise = ROUNDING * max(map(abs, (*baseline, *method)), default=0.0)
    differences = [0.0 if abs(b - a) <= noise else b - a for a, b in zip(baseline, method, strict=True)]
    centre, deviation, count = mean(differences), spread(differences), len(differences)
    centre = 0.0 if abs(centre) <= noise else centre
    if deviation is None:
        return Difference(centre, None, None, pairs=count)
    error = deviation / math.sqrt(count) if deviation > noise else 0.0
    half = float(stdtrit(count - 1, (1 + confidence) / 2)) * error
    alike = 1.0 if centre == 0 else None
    p_value = float(2 * stdtr(count - 1, -abs(centre) / error)) if error else alike
    return Difference(centre, (centre - half, centre + half), p_value, pairs=count)
