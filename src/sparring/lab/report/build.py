"""One HTML file about every finished run in a folder: no network, light and dark, phone and paper."""

import json
import math
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from ..compare import STANDARD, Comparison, comparisons, read_runs
from ..errors import LabError, RunError
from ..registry import tasks
from ..runs.environment import changes
from ..runs.files import drop_leftovers, read_json, write_atomic
from ..runs.shapes import SWEEP
from . import plots
from .panels import diagnostics, grouped_figures, learning_curves
from .story import Chapter, read_story
from .sweeps import Baseline, sweep_sections
from .units import with_unit
from .verdicts import headline, number, verdict

PALETTE = 8  # colours after the baseline's grey; more methods repeat them


def colours_of(comparison: Comparison) -> dict[str, int]:
    """A colour number for every row: the baseline is 0, grey."""
    others = [row.label for row in comparison.rows if row.variant != comparison.baseline]
    base = [row.label for row in comparison.rows if row.variant == comparison.baseline]
    return {**dict.fromkeys(base, 0), **{name: 1 + place % PALETTE for place, name in enumerate(others)}}


def section(comparison: Comparison, chapter: Chapter | None = None) -> dict[str, Any]:
    """Everything the page shows about one task at one scale, or in one chapter of a story."""
    colours = colours_of(comparison)
    entry = tasks().get(comparison.task)
    rows = [
        (row.label, row.difference.mean, row.difference.interval, colours[row.label], verdict(row, comparison.better))
        for row in comparison.rows
        if row.difference is not None and math.isfinite(row.difference.mean)
    ]
    gap = f"difference in {with_unit(comparison.score)}, {comparison.better} is better"
    others = list(dict.fromkeys(name for row in comparison.rows for name in row.others))
    commands = [run.environment["command"] for row in comparison.rows for run in row.runs]
    return {
        "comparison": comparison,
        "title": comparison.rows[0].runs[0].result.get("summary", entry.summary if entry else ""),
        "paper": entry.paper if entry else "",
        "headline": headline(comparison),
        "colours": colours,
        "verdicts": {row.label: verdict(row, comparison.better) for row in comparison.rows},
        "standard": [name for name in others if name in STANDARD],
        "others": [name for name in others if name not in STANDARD],
        "differences": Markup(plots.differences(rows, gap)) if rows else "",
        "curves": learning_curves(comparison, colours),
        "figures": grouped_figures(comparison, colours),
        "diagnostics": diagnostics(comparison, colours),
        "commands": list(dict.fromkeys(filter(None, commands))),
        "settings": settings_of(comparison),
        "anchor": f"{comparison.task}-{comparison.scale}"
        + (f"-{comparison.score}".replace(" ", "-") if chapter else ""),
        "name": chapter.question if chapter else comparison.task,
        "header": chapter.header if chapter else f"Test {with_unit(comparison.score)}, {comparison.better} is better",
        "text": chapter.text if chapter else "",
    }


def settings_of(comparison: Comparison) -> list[tuple[str, dict[str, Any]]]:
    """The settings all rows share, then what each has of its own."""
    values = {row.label: dict(row.runs[0].config["values"]) for row in comparison.rows}
    common = dict(set.intersection(*({(k, json.dumps(v)) for k, v in found.items()} for found in values.values())))
    own = [(label, {k: v for k, v in found.items() if k not in common}) for label, found in values.items()]
    return [("all methods", {k: json.loads(v) for k, v in sorted(common.items())}), *[(a, b) for a, b in own if b]]


def environments(found: Sequence[Comparison]) -> list[dict[str, Any]]:
    """The different environments among all runs, commands left out."""
    seen: dict[str, dict[str, Any]] = {}
    for comparison in found:
        for row in comparison.rows:
            for run in row.runs:
                there = {k: v for k, v in run.environment.items() if k not in ("command", "resumed")}
                for later in run.environment.get("resumed", ()):
                    there["resumed with"] = changes(there, later)
                seen.setdefault(json.dumps(there, sort_keys=True), there)
    return list(seen.values())


def build(out: Path, to: Path, complain: Callable[[str], None] = lambda sentence: None) -> Path:
    """Write the report about every finished run under `out` to the file `to`; returns it.

    Args:
        out: a folder with runs.
        to: the HTML file; it appears in one instant, over an older one if there is one.
        complain: called with a sentence for each run or sweep that is damaged and therefore left out; the page names
            them too.
    """
    damaged: list[str] = []
    runs = read_runs(out, damaged.append)
    sweeps = []
    for path in sorted((out / "sweep").glob("*.json")):
        try:
            sweeps.append(read_json(path, SWEEP))
        except RunError as error:
            damaged.append(str(error))
    if not runs and damaged:
        raise RunError(damaged[0])
    try:
        story = read_story(out)
    except RunError as error:
        damaged.append(str(error))
        story = []
    chapters = [(comparison, chapter) for chapter in story if (comparison := chapter.comparison(runs))]
    told = {(comparison.task, comparison.scale) for comparison, _ in chapters}
    found = comparisons(runs, tasks())
    if not found:
        raise LabError(f"no finished run under {out}; `sparring compare` or `sparring run` makes some")
    for sentence in damaged:
        complain(f"left out of the report: {sentence}")
    swept = {(s["task"], s["scale"], s["method"]) for s in sweeps}
    baselines = []
    for comparison in found:
        base = next(row for row in comparison.rows if row.variant == comparison.baseline)
        method = base.runs[0].config["method"]
        for row in comparison.rows:
            config = row.runs[0].config
            if config["method"] == method and (comparison.task, comparison.scale, method) not in swept:
                scores = [run.result["validation"][comparison.score] for run in row.runs]
                mean = sum(scores) / len(scores)
                baselines.append(
                    Baseline(comparison.task, comparison.scale, mean, config["values"], config["overrides"])
                )
    template = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    template.filters["number"] = number
    template.filters["unit"] = with_unit
    page = template.from_string(files(__package__).joinpath("template.html").read_text()).render(
        sections=[section(comparison, chapter) for comparison, chapter in chapters]
        + [section(comparison) for comparison in found if (comparison.task, comparison.scale) not in told],
        sweeps=sweep_sections(sweeps, baselines, PALETTE),
        environments=environments(found),
        runs=sum(len(row.runs) for comparison in found for row in comparison.rows),
        folder=out.name,
        damaged=damaged,
    )
    to.parent.mkdir(parents=True, exist_ok=True)
    drop_leftovers(to)
    write_atomic(to, page.encode())
    return to
