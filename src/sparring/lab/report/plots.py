"""The other charts: differences with intervals, reliability, histograms, heat maps, bars, shaded sentences.

>>> chart = heatmap([[0.0, 1.0], [0.5, 0.2]], "unit", "epoch")
>>> chart.count("<rect")
4
"""

import math
from collections.abc import Mapping, Sequence
from html import escape

from .svg import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Frame, extent, names, short, svg, ticks


def differences(rows: Sequence[tuple[str, float, tuple[float, float] | None, int, str]], label: str) -> str:
    """Paired differences to the baseline: a dot and its interval for each `(name, mean, interval, colour, verdict)`."""
    ends = [0.0, *(mean for _, mean, *_ in rows), *(end for _, _, gap, *_ in rows if gap for end in gap)]
    low, high = extent(ends, 0.05)
    above = any(len(name) > 20 for name, *_ in rows)  # long names stand over their rows, in full
    left, top, pitch = (20, 8, 46) if above else (150, 8, 30)
    height = top + pitch * len(rows) + 44

    def x(value: float) -> float:
        return round(left + (value - low) / (high - low) * (WIDTH - left - RIGHT), 1)

    bottom = height - 40
    parts = [f'<line class="zero" x1="{x(0)}" x2="{x(0)}" y1="{top}" y2="{bottom}"/>']
    for value in ticks(low, high, 4):
        parts.append(f'<line class="grid" x1="{x(value)}" x2="{x(value)}" y1="{top}" y2="{bottom}"/>')
        parts.append(f'<text class="tick" x="{x(value)}" y="{bottom + 16}" text-anchor="middle">{short(value)}</text>')
    for place, (name, mean, gap, colour, verdict) in enumerate(rows):
        y = top + pitch * (place + (0.7 if above else 0.5))
        where = f'x="{left}" y="{y - 12}"' if above else f'x="{left - 10}" y="{y + 4}" text-anchor="end"'
        parts.append(f'<text class="row" {where}>{escape(name)}</text>')
        tip = f"{name}: {mean:+.3g}" + (f" [{gap[0]:+.3g}, {gap[1]:+.3g}], {verdict}" if gap else "")
        if gap:
            parts.append(
                f'<line class="gap" x1="{x(gap[0])}" x2="{x(gap[1])}" y1="{y}" y2="{y}" stroke="var(--s{colour})"/>'
            )
        parts.append(
            f'<circle cx="{x(mean)}" cy="{y}" r="5" fill="var(--s{colour})"><title>{escape(tip)}</title></circle>'
        )
    parts.append(f'<text class="name" x="{WIDTH - RIGHT}" y="{height - 6}" text-anchor="end">{escape(label)}</text>')
    return svg("".join(parts), label, height)


def reliability(confidence: Sequence[float], accuracy: Sequence[float], count: Sequence[int], colour: int = 1) -> str:
    """Accuracy in bins of confidence; the shaded gap to the diagonal is what calibration removes."""
    frame = Frame([0.0, 1.0], [0.0, 1.0], "confidence", "accuracy", pad=0.0)
    bins, total = len(count), max(sum(count), 1)
    parts = [frame.axes()]
    for place, (sure, right, number) in enumerate(zip(confidence, accuracy, count, strict=True)):
        if not number:
            continue
        left, wide = frame.x(place / bins), frame.x(1 / bins) - frame.x(0) - 2
        tip = f"<title>{number} examples, confidence {short(sure)}, accuracy {short(right)}</title>"
        parts.append(
            bar(left + 1, frame.y(right), wide, frame.y(0), f"var(--s{colour})", 0.35 + 0.6 * number / total, tip)
        )
        low, high = sorted((frame.y(right), frame.y(sure)))
        parts.append(
            f'<rect class="miss" x="{left + 1}" y="{low}" width="{wide:.1f}" height="{high - low:.1f}">{tip}</rect>'
        )
        middle = left + 1 + wide / 2
        parts.append(f'<text class="tick" x="{middle:.1f}" y="{frame.y(0) - 3}" text-anchor="middle">{number}</text>')
    ends = f'x1="{frame.x(0)}" y1="{frame.y(0)}" x2="{frame.x(1)}" y2="{frame.y(1)}"'
    return svg("".join(parts) + f'<line class="reference" {ends}/>', "reliability diagram")


def bar(x: float, y: float, width: float, bottom: float, fill: str, opacity: float, inside: str = "") -> str:
    """One upright bar from `bottom` to `y`."""
    size = f'width="{max(width, 0.5):.1f}" height="{max(bottom - y, 0):.1f}"'
    return f'<rect x="{x:.1f}" y="{y:.1f}" {size} fill="{fill}" fill-opacity="{opacity:.2f}">{inside}</rect>'


def histogram(series: Mapping[str, Sequence[float]], x_label: str, bins: int = 24) -> str:
    """Overlaid histograms with shared bins; the series take the colours 1, 2, ... in order."""
    low, high = extent([value for values in series.values() for value in values], 0.0)
    counts = {}
    for name, values in series.items():
        counts[name] = [0] * bins
        for value in values:
            if math.isfinite(value):
                counts[name][min(bins - 1, int((value - low) / (high - low) * bins))] += 1
    tallest = max((count for found in counts.values() for count in found), default=1)
    frame = Frame([low, high], [0, tallest], x_label, "count", zero=True, pad=0.0)
    parts = [frame.axes()]
    wide = (WIDTH - LEFT - RIGHT) / bins
    for colour, (name, found) in enumerate(counts.items(), 1):
        for place, count in enumerate(found):
            if count:
                tip = f"<title>{escape(name)}: {count} from {short(low + place * (high - low) / bins)}</title>"
                x = LEFT + place * wide
                parts.append(bar(x + 0.5, frame.y(count), wide - 1, frame.y(0), f"var(--s{colour})", 0.55, tip))
    return svg("".join(parts), f"histogram of {x_label}")


def pooled(rows: Sequence[Sequence[float]], most: int) -> list[list[float]]:
    """At most `most` rows, neighbours averaged."""
    group = -(-len(rows) // most)
    chunks = [rows[start : start + group] for start in range(0, len(rows), group)]
    return [[sum(column) / len(column) for column in zip(*chunk)] for chunk in chunks]


def shades(rows: Sequence[Sequence[float]]) -> list[list[float]]:
    """A matrix averaged down to what a screen can show."""
    cells = pooled(rows, 60)
    return [list(column) for column in zip(*pooled(list(zip(*cells)), 100))]


def heatmap(
    rows: Sequence[Sequence[float]], x_label: str, y_label: str, scale: tuple[float, float] | None = None
) -> str:
    """A matrix as shades, the first row at the top; `scale` are the values of the lightest and the darkest shade."""
    height, width = len(rows), len(rows[0])
    cells = shades(rows)
    low, high = scale or extent([value for row in cells for value in row], 0.0)
    wide, tall = (WIDTH - LEFT - RIGHT) / len(cells[0]), (HEIGHT - TOP - BOTTOM) / len(cells)
    parts = []
    for r, row in enumerate(cells):
        for c, value in enumerate(row):
            share = min(1.0, max(0.0, (value - low) / (high - low)))
            place = (
                f'x="{LEFT + c * wide:.1f}" y="{TOP + r * tall:.1f}" width="{wide + 0.2:.1f}" height="{tall + 0.2:.1f}"'
            )
            parts.append(f'<rect class="heat" {place} fill-opacity="{share:.2f}"><title>{short(value)}</title></rect>')
    bottom = HEIGHT - BOTTOM + 17
    for value, x, anchor in ((1, LEFT, "start"), (width, WIDTH - RIGHT, "end")):
        parts.append(f'<text class="tick" x="{x}" y="{bottom}" text-anchor="{anchor}">{value}</text>')
    for value, y in ((1, TOP + 10), (height, HEIGHT - BOTTOM - 2)):
        parts.append(f'<text class="tick" x="{LEFT - 6}" y="{y}" text-anchor="end">{value}</text>')
    parts.append(f'<text class="tick" x="{LEFT}" y="{HEIGHT - 8}">light {short(low)}, dark {short(high)}</text>')
    return svg("".join(parts) + names("", y_label) + x_name(x_label), f"{x_label} by {y_label}")


def x_name(label: str) -> str:
    """The horizontal axis' name at the right, where a key stands at the left."""
    return f'<text class="name" x="{WIDTH - RIGHT}" y="{HEIGHT - 8}" text-anchor="end">{escape(label)}</text>'


def bars(series: Mapping[str, Sequence[float]], y_label: str) -> str:
    """Sorted bars of every series side by side, with their names below: learned keep rates of each layer."""
    values = [value for found in series.values() for value in found]
    top = 1.0 if values and min(values) >= 0 and max(values) <= 1 else max(values, default=1.0)
    frame = Frame([0, 1], [0, top], "", y_label, zero=True, pad=0.0)
    parts, gap = [frame.axes(x_ticks=False)], 10
    room = (WIDTH - LEFT - RIGHT - gap * (len(series) + 1)) / max(len(series), 1)
    for place, (name, found) in enumerate(series.items()):
        start = LEFT + gap + place * (room + gap)
        heights = sorted(found, reverse=True)
        if len(heights) > 120:
            heights = [row[0] for row in pooled([[value] for value in heights], 120)]
        wide = room / max(len(heights), 1)
        for number, value in enumerate(heights):
            tip = f"<title>{escape(name)}: {short(value)}</title>"
            x = start + number * wide
            parts.append(
                bar(x, frame.y(value), wide - min(0.15 * wide, 3), frame.y(0), f"var(--s{1 + place % 8})", 0.8, tip)
            )
        middle = start + room / 2
        shown = name if len(name) * 6 <= room + gap else name[: max(3, int(room / 6))] + "…"
        parts.append(
            f'<text class="tick" x="{middle:.1f}" y="{HEIGHT - BOTTOM + 17}" text-anchor="middle">{escape(shown)}</text>'
        )
    return svg("".join(parts), y_label)


def violins(series: Mapping[str, Sequence[float]], y_label: str, colours: Mapping[str, int]) -> str:
    """One violin for each series: a smoothed density on both sides, every value as a dot, the mean as a bar."""
    everything = [value for found in series.values() for value in found if math.isfinite(value)]
    frame = Frame([0, 1], everything, "", y_label, pad=0.1)
    parts, room = [frame.axes(x_ticks=False)], (WIDTH - LEFT - RIGHT) / max(len(series), 1)
    for place, (name, found) in enumerate(series.items()):
        values = [value for value in found if math.isfinite(value)]
        if not values:
            continue
        middle, colour = LEFT + (place + 0.5) * room, f"var(--s{colours.get(name, 0)})"
        mean = sum(values) / len(values)
        deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / len(values)) or abs(mean) * 1e-3 or 1e-3
        width = deviation * len(values) ** -0.2  # Scott's rule
        low, high = min(values) - 2 * width, max(values) + 2 * width
        levels = [low + (high - low) * step / 40 for step in range(41)]
        density = [sum(math.exp(-(((level - value) / width) ** 2) / 2) for value in values) for level in levels]
        half = [0.35 * room * amount / max(density) for amount in density]
        right = [f"{middle + wide:.1f},{frame.y(level)}" for wide, level in zip(half, levels)]
        left = [f"{middle - wide:.1f},{frame.y(level)}" for wide, level in zip(half, levels)]
        outline = " ".join([*right, *reversed(left)])
        parts.append(f'<polygon points="{outline}" fill="{colour}" fill-opacity=".3" stroke="{colour}"/>')
        parts.append(bar(middle - 12, frame.y(mean) - 1.5, 24, frame.y(mean) + 1.5, colour, 1.0))
        for value in values:
            tip = f"<title>{escape(name)}: {short(value)}</title>"
            parts.append(f'<circle cx="{middle:.1f}" cy="{frame.y(value)}" r="3" fill="{colour}">{tip}</circle>')
        under = f'x="{middle:.1f}" y="{HEIGHT - BOTTOM + 17}" text-anchor="middle"'
        parts.append(f'<text class="tick" {under}>{escape(name)}</text>')
    return svg("".join(parts), f"{y_label} of linear probes")


def sentences(items: Sequence[Mapping[str, object]], darkest: float | None = None) -> str:
    """Words shaded by their weights, as HTML; `darkest` is the weight of the strongest shade, by default each sentence's own."""
    lines = []
    for item in items:
        words, weights = item["words"], item["weights"]
        assert isinstance(words, list)
        assert isinstance(weights, list)
        largest = darkest or max((abs(weight) for weight in weights), default=1.0) or 1.0
        shaded = " ".join(
            f'<span class="word" style="--w:{100 * abs(weight) / largest:.0f}%" title="{short(weight)}">{escape(str(word))}</span>'
            for word, weight in zip(words, weights, strict=True)
        )
        label = f'<span class="tag">{escape(str(item["label"]))}</span> ' if item.get("label") else ""
        lines.append(f'<p class="sentence">{label}{shaded}</p>')
    return "".join(lines)
