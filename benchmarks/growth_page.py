"""The charts and tables of docs/growth.md, drawn with the lab's own tools from what bench_growth.py wrote."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sparring.lab.report.svg import lines

Row = dict[str, Any]
TITLES = {
    "layers": "layers", "length": "length of the sequence", "batch": "examples in the batch", "steps": "ascent steps K",
    "sites": "sites (of 24 layers)", "parameters": "parameters, millions",
}  # fmt: skip
# What a method's passes cost in plain steps: from K, and what a forward pass, a look (forward, and back to the site alone) and a
# second derivative cost. By count these are 1, 2 and 6 of the 3 of a plain step. See the page.
BOUNDS: dict[str, Callable[..., float]] = {
    "VAT": lambda k, f, look, second: 2 + k * look,
    "SALT, autograd": lambda k, f, look, second: 2 + k * second + (k - 1) * look,
    "SALT, finite differences": lambda k, f, look, second: 2 + 2 * k + (k - 1) * look,
    "adversarial dropout": lambda k, f, look, second: 2 + k * look,
    "attention AT": lambda k, f, look, second: 2 + k * look,
    "learned dropout": lambda k, f, look, second: 1 + f,
    "LPD": lambda k, f, look, second: 1.0,
}
COUNTED = (1 / 3, 2 / 3, 2.0)
STYLE = """<style>
svg { --s0: #6b7280; --s1: #1d6fb8; --s2: #b45309; --s3: #15803d; --s4: #7e22ce; --s5: #be123c; --s6: #0e7490; --ink: #1f2937;
  --faint: #d1d5db; font: 12px sans-serif }
@media (prefers-color-scheme: dark) { svg { --s0: #9ca3af; --s1: #6cb2f2; --s2: #f0a860; --s3: #6ee7a0; --s4: #d8b4fe; --s5: #fda4af;
  --s6: #67e8f9; --ink: #e5e7eb; --faint: #4b5563 } }
text { fill: var(--ink) } .tick { font-size: 11px } .grid { stroke: var(--faint); stroke-width: .5 } .axis, .mark { stroke: var(--ink) }
.series { fill: none; stroke-width: 2 }
</style>"""


def chart(rows: Sequence[Row], axis: str, field: str, label: str) -> str:
    """One line a method, its passes by hand dashed in the same colour."""
    series, colours, dashes = {}, {}, {}
    for number, name in enumerate(BOUNDS):
        mine = sorted((r for r in rows if r["axis"] == axis and r["method"] == name), key=lambda r: r["value"])
        if not mine:
            continue
        values = [r["value"] for r in mine]
        series[name], colours[name] = (values, [r[field] for r in mine]), number
        if field == "ratio":
            key = f"passes of {name}"
            series[key], colours[key], dashes[key] = (values, [r["by_hand"] for r in mine]), number, 1
    drawing = lines(series, TITLES[axis], label, colours, log_x=True, dashes=dashes)
    drawing = with_legend(drawing, [name for name in BOUNDS if name in series], bool(dashes))
    opening = drawing.index(">") + 1
    return '<svg xmlns="http://www.w3.org/2000/svg" width="640"' + drawing[4:opening] + STYLE + drawing[opening:] + "\n"


def with_legend(drawing: str, names: Sequence[str], dashed: bool) -> str:
    """The names of the methods in their colours, below the chart: three in a line."""
    left, top, width, height = map(int, re.findall(r'viewBox="(\d+) (\d+) (\d+) (\d+)"', drawing)[0])
    entries = [(name, f"--s{list(BOUNDS).index(name)}") for name in names]
    entries += [("dashed: passes by hand", "--ink")] if dashed else []
    marks = [
        f'<text class="tick" x="{left + 8 + number % 3 * width // 3}" y="{top + height + 14 + number // 3 * 15}" '
        f'style="fill: var({colour})">{name}</text>'
        for number, (name, colour) in enumerate(entries)
    ]
    taller = f'viewBox="{left} {top} {width} {height + 8 + 15 * -(-len(entries) // 3)}"'
    return re.sub(r'viewBox="[^"]*"', taller, drawing, count=1).replace("</svg>", "".join(marks) + "</svg>")


def table(rows: Sequence[Row], axis: str) -> list[str]:
    values = sorted({r["value"] for r in rows if r["axis"] == axis})
    found = [
        f"| {TITLES[axis]} | by count | " + " | ".join(f"{v:,}" for v in values) + " |",
        "|---" * (len(values) + 2) + "|",
    ]
    for name, bound in BOUNDS.items():
        mine = {r["value"]: r for r in rows if r["axis"] == axis and r["method"] == name}
        if not mine:
            continue
        limits = sorted({bound(r["size"]["steps"], *COUNTED) for r in mine.values()})
        limit = f"{limits[0]:.2f}" if len(limits) == 1 else f"{limits[0]:.2f} to {limits[-1]:.2f}"
        cells = [
            f"{r['ratio']:.2f} of {r['by_hand']:.2f} [{r['low']:.2f}, {r['high']:.2f}], {r['memory']:.2f}"
            if (r := mine.get(v))
            else ""
            for v in values
        ]
        found.append(f"| {name} | {limit} | " + " | ".join(cells) + " |")
    plain = {r["value"]: r for r in rows if r["axis"] == axis and r["method"] == "plain"}
    cells = [f"{plain[v]['seconds'] * 1e3:.0f} ms, {plain[v]['mib']:.0f} MiB" for v in values]
    return [*found, "| *plain step* | | " + " | ".join(cells) + " |"]


def kept_table(rows: Sequence[Row]) -> list[str]:
    """Every point that was timed without page faults, one a column."""
    points = list(dict.fromkeys((r["axis"], r["value"]) for r in rows))
    head = " | ".join(f"{TITLES[axis].split(',')[0].split(' (')[0]} {value:,}" for axis, value in points)
    found = ["### Without page faults", "", f"| method | {head} |", "|---" * (len(points) + 1) + "|"]
    for name in BOUNDS:
        mine = {(r["axis"], r["value"]): r for r in rows if r["method"] == name}
        cells = [
            f"{r['ratio']:.2f} of {r['by_hand']:.2f} [{r['low']:.2f}, {r['high']:.2f}]" if (r := mine.get(p)) else ""
            for p in points
        ]
        found.append(f"| {name} | " + " | ".join(cells) + " |")
    return [*found, ""]


def write(rows: Sequence[Row], docs: Path, kept: Sequence[Row] = ()) -> None:
    """Charts into assets/growth, and the tables between the marks of growth.md."""
    folder = docs / "assets" / "growth"
    folder.mkdir(parents=True, exist_ok=True)
    body: list[str] = []
    for axis, title in TITLES.items():
        if not any(r["axis"] == axis for r in rows):
            continue
        for field, label in (("ratio", "time against a plain step"), ("memory", "peak memory against a plain step")):
            (folder / f"{axis}-{field}.svg").write_text(chart(rows, axis, field, label))
        body += [f"### {title[0].upper()}{title[1:]}", "", f"![Time against {title}](assets/growth/{axis}-ratio.svg)"]
        body += [f"![Memory against {title}](assets/growth/{axis}-memory.svg)", "", *table(rows, axis), ""]
    body += kept_table(kept) if kept else []
    page = docs / "growth.md"
    before, _, rest = page.read_text().partition("<!-- made by bench_growth.py -->\n")
    _, _, after = rest.partition("<!-- end -->\n")
    made = "\n".join(body)
    page.write_text(f"{before}<!-- made by bench_growth.py -->\n{made}<!-- end -->\n{after}")
