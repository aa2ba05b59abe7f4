"""Charts as SVG text: axes, lines, dots. Colours are CSS variables, so that the page's light and dark modes reach them.

>>> chart = lines({"plain": ([0, 1, 2], [0.9, 0.5, 0.4])}, "epoch", "error", {"plain": 0})
>>> chart.startswith("<svg"), "polyline" in chart
(True, True)
"""

import math
from collections.abc import Mapping, Sequence
from html import escape

from ..statistics import paired

WIDTH, HEIGHT = 420, 270
LEFT, RIGHT, TOP, BOTTOM = 54, 12, 12, 44
BESIDE, ROOM = 6, 16  # between the dots of two series at the same x, and of all: what the margin holds
Points = tuple[Sequence[float], Sequence[float]]


def short(value: float) -> str:
    """A number for an axis.

    >>> [short(v) for v in (0.0, 0.25, 1500.0, 2e-5, 3.0)]
    ['0', '0.25', '1500', '2e-05', '3']
    """
    return f"{value:.4g}"


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers that span a range.

    >>> ticks(0.0, 1.0)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    if not high > low:
        return [low]
    raw = (high - low) / count
    base = 10 ** math.floor(math.log10(raw))
    step = next(base * factor for factor in (1, 2, 2.5, 5, 10) if base * factor >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(n * step, 12) for n in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten inside a range, with 2s and 5s where there are few."""
    factors = (1,) if math.log10(high / low) > 3 else (1, 2, 5)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [f * 10.0**p for p in powers for f in factors if low * 0.999 <= f * 10.0**p <= high * 1.001]


class Frame:
    """Axes around data: turns numbers into places and draws grid, ticks and labels."""

    def __init__(
        self,
        xs: Sequence[float],
        ys: Sequence[float],
        x_label: str,
        y_label: str,
        log_x: bool = False,
        zero: bool = False,
        pad: float = 0.06,
        whole: bool = False,
    ) -> None:
        self.whole = whole
        self.log_x = log_x and min(xs, default=1) > 0
        self.x_low, self.x_high = extent(xs, 0.0)
        low, high = extent(ys, pad)
        self.y_low, self.y_high = (min(0.0, low) if zero else low), high
        self.x_label, self.y_label = x_label, y_label

    def x(self, value: float) -> float:
        """Where a number stands on the horizontal axis."""
        if self.log_x:
            share = (math.log(value) - math.log(self.x_low)) / (math.log(self.x_high) - math.log(self.x_low) or 1)
        else:
            share = (value - self.x_low) / (self.x_high - self.x_low)
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        """Where a number stands on the vertical axis."""
        share = (value - self.y_low) / (self.y_high - self.y_low)
        return round(HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM), 1)

    def axes(self, x_ticks: bool = True) -> str:
        """Grid, tick labels and axis names."""
        parts = []
        for value in ticks(self.y_low, self.y_high):
            y = self.y(value)
            parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
            parts.append(f'<text class="tick" x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{short(value)}</text>')
        marks = log_ticks(self.x_low, self.x_high) if self.log_x else ticks(self.x_low, self.x_high)
        if self.whole:
            marks = [value for value in marks if float(value).is_integer()] or marks
        for value in marks if x_ticks else []:
            x = self.x(value)
            parts.append(f'<line class="mark" x1="{x}" x2="{x}" y1="{HEIGHT - BOTTOM}" y2="{HEIGHT - BOTTOM + 4}"/>')
            parts.append(
                f'<text class="tick" x="{x}" y="{HEIGHT - BOTTOM + 17}" text-anchor="middle">{short(value)}</text>'
            )
        bottom = HEIGHT - BOTTOM
        parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{bottom}" y2="{bottom}"/>')
        parts.append(names(self.x_label, self.y_label))
        return "".join(parts)


def names(x_label: str, y_label: str) -> str:
    """The names of the axes."""
    across, up = (LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2
    return (
        f'<text class="name" x="{across}" y="{HEIGHT - 8}" text-anchor="middle">{escape(x_label)}</text>'
        f'<text class="name" transform="translate(13 {up}) rotate(-90)" text-anchor="middle">{escape(y_label)}</text>'
    )


def extent(values: Sequence[float], pad: float) -> tuple[float, float]:
    """The range of finite values, a little widened, never empty."""
    finite = [value for value in values if math.isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    if low == high:
        room = abs(low) * 0.1 or 0.5
        return low - room, high + room
    return low - pad * (high - low), high + pad * (high - low)


def svg(body: str, label: str, height: float = HEIGHT, width: float = WIDTH) -> str:
    """A chart that scales with its box."""
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(label)}" '
        f'preserveAspectRatio="xMidYMid meet"><title>{escape(label)}</title>{body}</svg>'
    )


def lines(
    series: Mapping[str, Points],
    x_label: str,
    y_label: str,
    colours: Mapping[str, int],
    log_x: bool = False,
    dashes: Mapping[str, int] | None = None,
) -> str:
    """One line for each series (1 dashed, 2 dotted in `dashes`); hovering over a dot shows its number."""
    kept = {name: [(x, y) for x, y in zip(*points) if y is not None] for name, points in series.items()}
    xs = [x for points in kept.values() for x, _ in points]
    ys = [y for points in kept.values() for _, y in points]
    frame = Frame(xs, ys, x_label, y_label, log_x, whole=all(float(x).is_integer() for x in xs))
    parts = [frame.axes()]
    for name, points in kept.items():
        colour = f"var(--s{colours.get(name, 0)})"
        path = " ".join(f"{frame.x(x)},{frame.y(y)}" for x, y in points)
        dash = ("", ' stroke-dasharray="7 5"', ' stroke-dasharray="1 5"')[(dashes or {}).get(name, 0) % 3]
        parts.append(f'<polyline class="series" points="{path}" stroke="{colour}"{dash}/>')
        for x, y in points[:: max(1, len(points) // 25)]:
            tip = f"{escape(name)}: {short(y)} at {short(x)}"
            parts.append(
                f'<circle cx="{frame.x(x)}" cy="{frame.y(y)}" r="3" fill="{colour}"><title>{tip}</title></circle>'
            )
    return svg("".join(parts), f"{y_label} against {x_label}")


def scatter(
    series: Points | Mapping[str, Points],
    x_label: str,
    y_label: str,
    log_x: bool = False,
    line: float | None = None,
    colours: Mapping[str, int] | None = None,
) -> str:
    """Dots, joined by a line through the means at equal x, with Student's 95 % interval of each mean of several.

    `line` is a dashed reference (the baseline). Several series stand a little beside each other, so that none hides another.
    """
    named = series if isinstance(series, Mapping) else {"": series}
    means: dict[str, dict[float, list[float]]] = {name: {} for name in named}
    for name, points in named.items():
        for x, y in zip(*points):
            means[name].setdefault(x, []).append(y)
    intervals = {
        (name, x): paired([0.0] * len(found), found).interval for name, at in means.items() for x, found in at.items()
    }
    ends = [end for interval in intervals.values() for end in interval or ()]
    xs, ys = ([value for points in named.values() for value in points[axis]] for axis in (0, 1))
    frame = Frame(xs, [*ys, *ends, *([] if line is None else [line])], x_label, y_label, log_x)
    parts = [frame.axes()]
    if line is not None:
        y = frame.y(line)
        parts.append(f'<line class="reference" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text class="tick" x="{WIDTH - RIGHT}" y="{y - 5}" text-anchor="end">baseline</text>')
    last = len(means) - 1
    beside = min(BESIDE, ROOM / max(1, last))
    for place, (name, at) in enumerate(means.items()):
        colour, said = f"var(--s{(colours or {}).get(name, 1)})", f"{escape(name)}: " if last else ""
        across = {x: round(frame.x(x) + beside * (place - last / 2), 1) for x in sorted(at)}
        path = " ".join(f"{across[x]},{frame.y(sum(at[x]) / len(at[x]))}" for x in across)
        parts.append(f'<polyline class="series" points="{path}" stroke="{colour}"/>')
        for x, found in at.items():
            interval = intervals[name, x]
            if interval is not None:
                tip = f"{said}95 % interval at {short(x)}: {short(interval[0])} to {short(interval[1])}"
                ends_at = f'x1="{across[x]}" x2="{across[x]}" y1="{frame.y(interval[0])}" y2="{frame.y(interval[1])}"'
                parts.append(f'<line stroke="{colour}" stroke-width="2" {ends_at}><title>{tip}</title></line>')
            for y in found:
                tip = f"{said}{short(y)} at {short(x)}"
                dot = f'cx="{across[x]}" cy="{frame.y(y)}" r="4" fill="{colour}" fill-opacity=".55"'
                parts.append(f"<circle {dot}><title>{tip}</title></circle>")
    return svg("".join(parts), f"{y_label} against {x_label}")
