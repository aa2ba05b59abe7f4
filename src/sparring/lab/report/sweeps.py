"""The sweeps of a folder: those that differ in their method alone stand in one picture.

>>> fixed({"name": "rte tiny salt [radius] seeds 0,1 epochs=1 norm=linf"})
'epochs=1 norm=linf'
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .panels import Chart, chart
from .svg import Points, scatter

Summary = Mapping[str, Any]  # what `sparring.lab.sweep` writes, see `SWEEP` in `runs/shapes.py`


def fixed(summary: Summary) -> str:
    """The settings that a sweep changed and did not search, as its name lists them after the seeds."""
    seeds_and_changes = summary["name"].partition("] seeds ")[2]
    return str(seeds_and_changes.partition(" ")[2])


@dataclass(frozen=True)
class Baseline:
    """What a sweep can be compared with: the mean validation score of a task's baseline, and the settings it was run with."""

    task: str
    scale: str
    score: float
    values: Mapping[str, Any]
    overrides: Mapping[str, Any]

    def suits(self, summary: Summary) -> bool:
        """Whether it was run with the fixed changes of a sweep, as far as it knows such settings, and no others."""
        changes = {name: value for name, value in summary.get("changes", {}).items() if name in self.values}
        same = changes == self.overrides
        return (self.task, self.scale) == (summary["task"], summary["scale"]) and same


def grouped(summaries: Sequence[Summary]) -> list[dict[str, Summary]]:
    """Sweeps of the same score over the same parameters with the same fixed changes, by method."""
    groups: dict[tuple[Any, ...], list[Summary]] = {}
    for one in sorted(summaries, key=lambda one: (one["task"], one["scale"], fixed(one), one["method"], one["seeds"])):
        shared = (one["task"], one["scale"], one["score"], fixed(one), *sorted(one["log"]))
        groups.setdefault(shared, []).append(one)
    return [labelled(members) for members in groups.values()]


def labelled(members: Sequence[Summary]) -> dict[str, Summary]:
    """Sweeps by method, and by their seeds where a method was swept with several lists of them."""
    methods = [one["method"] for one in members]
    return {
        f"{one['method']} (seeds {', '.join(map(str, one['seeds']))})"
        if methods.count(one["method"]) > 1
        else one["method"]: one
        for one in members
    }


def points(summary: Summary, name: str) -> Points:
    """The value of a parameter and the validation score of every run that has a number there."""
    found = [trial for trial in summary["trials"] if isinstance(trial["settings"][name], (int, float))]
    xs = [float(trial["settings"][name]) for trial in found for _ in trial["validation"]]
    return xs, [float(value) for trial in found for value in trial["validation"]]


def sensitivity(
    group: Mapping[str, Summary], name: str, colours: Mapping[str, int], reference: float | None
) -> Chart | None:
    """The score of every method of a group against one parameter; None where no value of it is a number."""
    series = {label: found for label, one in group.items() if (found := points(one, name))[0]}
    if not series:
        return None
    first = next(iter(group.values()))
    xs = [x for found in series.values() for x in found[0]]
    wide = any(one["log"][name] for one in group.values()) or max(xs) >= 20 * min(xs)
    log = min(xs) > 0 and wide
    drawing = scatter(series, name, f"validation {first['score']}", log, reference, colours)
    legend = [(label, colours[label]) for label in series] if len(group) > 1 else []
    return chart(f"{first['score']} against {name}", drawing, legend)


def sweep_sections(summaries: Sequence[Summary], baselines: Sequence[Baseline], palette: int) -> Any:
    """What the page shows about every group of sweeps: heading, charts and the best trials.

    Args:
        summaries: of all sweeps of the folder.
        baselines: what to compare with, where one suits.
        palette: how many colours there are; a method has the same one in every picture.
    """
    groups = grouped(summaries)
    labels = dict.fromkeys(label for group in groups for label in group)
    colours = {label: 1 + place % palette for place, label in enumerate(labels)}
    made = []
    for group in groups:
        first = next(iter(group.values()))
        reference = next((baseline.score for baseline in baselines if baseline.suits(first)), None)
        charts = [sensitivity(group, name, colours, reference) for name in first["log"]]
        methods = ", ".join(dict.fromkeys(one["method"] for one in group.values()))
        heading = [f"{first['task']} ({first['scale']})", methods, fixed(first)]
        made.append(
            {
                "heading": " · ".join(filter(None, heading)),
                "charts": [found for found in charts if found],
                "parameters": list(first["log"]),
                "best": [(label, trial) for label, one in group.items() for trial in one["trials"][:5]],
                "several": len(group) > 1,
            }
        )
    return made
