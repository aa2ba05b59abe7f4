"""A comparison in words."""

import math

from ..compare import Comparison, Row
from .units import with_unit


def verdict(row: Row, better: str) -> str:
    """In words: what the interval of the difference says."""
    if row.difference is None:
        return "no seed in common" if row.alone else "baseline"
    if row.difference.interval is None:
        return "one seed: no interval"
    if not row.difference.clear:
        return "no clear difference"
    return "better" if (row.difference.mean > 0) == (better == "higher") else "worse"


def headline(comparison: Comparison) -> str:
    """The comparison in one or two sentences that are true: what is told apart from the baseline, and what is not."""
    rows = [row for row in comparison.rows if row.difference is not None]
    base = next(row for row in comparison.rows if row.difference is None and not row.alone)
    against = f"{base.label} ({number(base.mean)})"
    if not rows:
        return f"{base.label}: {with_unit(comparison.score)} {number(base.mean)}; nothing to compare it with."
    seeds = min(row.difference.pairs for row in rows if row.difference)
    if all(row.difference.interval is None for row in rows if row.difference):
        best = comparison.best
        return f"Best: {best.label}, {with_unit(comparison.score)} {number(best.mean)}. One seed says nothing about chance: add seeds."
    parts = []
    for word in ("better", "worse"):
        chosen = [row for row in rows if verdict(row, comparison.better) == word]
        sign = 1 if (comparison.better == "higher") == (word == "better") else -1
        chosen.sort(key=lambda row: -sign * row.mean)
        if chosen:
            parts.append(f"{word} than {against}: " + ", ".join(f"{row.label} ({number(row.mean)})" for row in chosen))
    open_ = [row.label for row in rows if verdict(row, comparison.better) == "no clear difference"]
    if open_:
        parts.append(("no clear difference: " if parts else f"no clear difference to {against}: ") + ", ".join(open_))
    told = "; ".join(parts)
    return f"{told[0].upper()}{told[1:]}. In {with_unit(comparison.score)}, {seeds} paired seeds, Holm's correction at 5 %."


def number(value: float | None, digits: int = 4) -> str:
    """A figure for a table of the page."""
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:.0f}" if abs(value) >= 10**digits else f"{value:.{digits}g}"
