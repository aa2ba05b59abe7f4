"""What the records of a study say: gains paired by seed, Holm's correction, and one of three verdicts.

>>> finding = judge([2.0, 2.2, 1.9, 2.1, 2.3], effect=2.0)
>>> finding.verdict, round(finding.mean, 2)
('confirmed', 2.1)
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ..statistics import holm, paired, spread

Verdict = Literal["confirmed", "refuted", "open"]
LEVEL = 0.05
POWER = 0.8
MOST = 1000  # seeds that anybody would run
FEWEST = 5


@dataclass(frozen=True)
class Finding:
    """One part of a claim beside its records. Gains are positive where the claim says so.

    Args:
        gains: by seed.
        mean: of the gains.
        interval: Student's 95 % interval of the mean; None with fewer than two seeds.
        corrected: the interval at the level that Holm's procedure gives this part.
        p_value: two-sided, after Holm's correction.
        effect: what the source reports.
        level: that Holm's procedure leaves to this part.
        verdict: see `judge`.
    """

    gains: tuple[float, ...]
    mean: float
    interval: tuple[float, float] | None
    corrected: tuple[float, float] | None
    p_value: float | None
    effect: float | None
    level: float
    verdict: Verdict

    @property
    def alike(self) -> bool:
        """Whether all gains are the same, which comes from runs that ended in the same network and says nothing of other seeds."""
        return self.interval is not None and self.interval[0] == self.interval[1]

    @property
    def seeds(self) -> int | None:
        """How many would settle an open part at the spread seen, with a power of 80 %; None where that is unknown."""
        deviation, half = spread(self.gains), (self.effect or 0.0) / 2
        if self.verdict != "open" or deviation is None or self.alike or math.isnan(self.mean):
            return None
        needed = seeds_needed(max(self.mean, half - self.mean), deviation, self.level)
        return None if needed is None else max(FEWEST, needed)


def power(effect: float, deviation: float, seeds: int, level: float = LEVEL) -> float:
    """Chance that Student's paired test finds a mean gain of `effect` when gains scatter by `deviation`."""
    from scipy import stats  # takes a second to import

    if seeds < 2:
        return 0.0
    if deviation == 0:
        return float(effect != 0)
    shift, edge = abs(effect) / deviation * math.sqrt(seeds), float(stats.t.ppf(1 - level / 2, seeds - 1))
    return float(stats.nct.sf(edge, seeds - 1, shift) + stats.nct.cdf(-edge, seeds - 1, shift))


def seeds_needed(effect: float, deviation: float, level: float = LEVEL) -> int | None:
    """The fewest seeds with a power of 80 %; None beyond a thousand."""
    low, high = 1, 2
    while power(effect, deviation, high, level) < POWER:
        low, high = high, 2 * high
        if low >= MOST:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if power(effect, deviation, middle, level) < POWER else (low, middle)
    return high


def judge(gains: Sequence[float], effect: float | None, level: float = LEVEL, adjusted: float | None = None) -> Finding:
    """The verdict on one part of a claim.

    *refuted*: the 95 % interval lies below half of the reported effect (below zero where none is reported).
    *confirmed*: it does not, and the corrected interval lies above zero.
    *open*: neither, or fewer than five seeds, or gains that are all the same: an interval without width is no certainty.

    Args:
        gains: paired by seed, positive where the claim says so.
        effect: reported by the source.
        level: that Holm's procedure leaves to this part.
        adjusted: its p-value after Holm's correction; its own by default.
    """
    zeros = [0.0] * len(gains)
    whole, narrow = paired(zeros, gains, 1 - level), paired(zeros, gains)
    p_value = narrow.p_value if adjusted is None else adjusted
    half = (effect or 0.0) / 2
    finding = Finding(tuple(gains), narrow.mean, narrow.interval, whole.interval, p_value, effect, level, "open")
    if len(gains) < FEWEST or narrow.interval is None or finding.alike or math.isnan(narrow.mean):
        return finding
    if narrow.interval[1] < half:
        return replace(finding, verdict="refuted")
    confirmed = p_value is not None and p_value < LEVEL and narrow.mean > 0
    return replace(finding, verdict="confirmed") if confirmed else finding


def judge_all(parts: Sequence[tuple[Sequence[float], float | None]]) -> list[Finding]:
    """The parts of one claim together: `(gains, reported effect)` each, with Holm's correction over all of them."""
    raw = [paired([0.0] * len(gains), gains).p_value for gains, _ in parts]
    known = [1.0 if p is None or math.isnan(p) else p for p in raw]
    ranks = {place: rank for rank, place in enumerate(sorted(range(len(known)), key=lambda place: known[place]))}
    adjusted = holm(known)
    return [
        judge(gains, effect, LEVEL / (len(parts) - ranks[place]), adjusted[place])
        for place, (gains, effect) in enumerate(parts)
    ]


def together(findings: Sequence[Finding]) -> Verdict:
    """A claim is confirmed when all of its parts are, refuted when one is, else open."""
    verdicts = {finding.verdict for finding in findings}
    if "refuted" in verdicts:
        return "refuted"
    return "confirmed" if verdicts == {"confirmed"} else "open"
