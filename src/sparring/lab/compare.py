"""Methods x seeds on the same data order and initial weights, and the table they make."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .errors import LabError, RunError, unknown
from .pool import Job
from .runs.files import Damaged, read_json
from .runs.folder import folder_of, read_figures, read_metrics, read_probes
from .runs.shapes import CONFIG, ENVIRONMENT, RESULT
from .statistics import Difference, holm, mean, paired, spread
from .task import SCALES, Task, Value

STANDARD = ("worst-case accuracy", "ece")  # figures that stand first beside the score wherever a task has them


@dataclass(frozen=True)
class Run:
    """A finished run, as read from its folder."""

    path: Path
    config: Mapping[str, Any]
    result: Mapping[str, Any]
    environment: Mapping[str, Any] = field(default_factory=dict)
    metrics: Sequence[Mapping[str, Any]] = ()  # one record an epoch
    figures: Sequence[Mapping[str, Any]] = ()

    @property
    def variant(self) -> str:
        """The method, with what the user changed."""
        return self.path.parent.name

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    def figure(self, name: str) -> float:
        """A figure of the test split (nan where it is undefined)."""
        number = self.result["test"].get(name)
        return float("nan") if number is None else float(number)

    @property
    def value(self) -> float:
        """The figure that decides."""
        return self.figure(self.result["score"])


@dataclass(frozen=True)
class Row:
    """One line of a comparison."""

    variant: str
    label: str  # the method, with what was changed for it alone
    runs: tuple[Run, ...]
    values: tuple[float, ...]
    mean: float
    spread: float | None
    difference: Difference | None  # None for the baseline itself, and without a seed in common with it
    time: float  # CPU time per step relative to the baseline
    passes: float  # forward and backward passes per step relative to the baseline
    others: Mapping[str, float] = field(default_factory=dict)  # means of the task's other figures
    alone: bool = False  # no baseline, but without a seed in common with it


@dataclass(frozen=True)
class Comparison:
    """All variants of one task at one scale."""

    task: str
    scale: str
    score: str
    better: str
    baseline: str
    rows: tuple[Row, ...]

    @property
    def best(self) -> Row:
        """The row with the best mean."""
        sign = 1 if self.better == "higher" else -1
        return max(self.rows, key=lambda row: sign * row.mean if row.mean == row.mean else float("-inf"))


def jobs(
    task: Task,
    methods: Sequence[str],
    seeds: Sequence[int],
    scale: str,
    out: Path,
    data: Path | None = None,
    overrides: Mapping[str, Value] | None = None,
) -> list[Job]:
    """The runs of a comparison, seed by seed so that paired results come early.

    An override that only some of the methods know goes to those; one that none knows is an error.
    """
    overrides = dict(overrides or {})
    known = {name: task.setting(name, scale).values for name in methods}
    every = {name for values in known.values() for name in values}
    for name in overrides:
        if name not in every:
            raise unknown(f"setting of task {task.name}", name, every)
    found = []
    for seed in seeds:
        for method in methods:
            mine = {name: value for name, value in overrides.items() if name in known[method]}
            setting = task.setting(method, scale, seed, data, mine)
            found.append(Job(setting, folder_of(out, setting)))
    return found


def read_run(path: Path) -> Run:
    """A finished run from its folder; `Damaged` where one of its files is not what was written."""
    result, metrics = read_json(path / "result.json", RESULT), read_metrics(path, tail=False)
    if result["score"] not in result["test"] or len(metrics) != result["epochs"]:
        raise Damaged(
            f"{path / 'result.json'} does not fit the metrics beside it; delete the run folder to start again"
        )
    config, environment = read_json(path / "config.json", CONFIG), read_json(path / "environment.json", ENVIRONMENT)
    return Run(path, config, result, environment, metrics, [*read_figures(path), *read_probes(path)])


def read_runs(out: Path, complain: Callable[[str], None] | None = None) -> list[Run]:
    """Every finished run under a folder.

    Args:
        out: the folder, as given to `--out`.
        complain: called with a sentence for each run that cannot be read, which is left out; without it such a run
            raises.
    """
    if not out.is_dir():
        raise LabError(f"{out} is not a folder with runs; `sparring compare` makes one")
    runs = []
    for path in sorted(out.rglob("result.json")):
        if (path.parent / "config.json").exists():
            try:
                runs.append(read_run(path.parent))
            except RunError as error:
                if complain is None:
                    raise
                complain(str(error))
    return runs


def compare(
    runs: Sequence[Run], baseline: str, order: Sequence[str] = (), by: tuple[str, str] | None = None
) -> Comparison:
    """The table of runs of one task and scale, with Holm's correction over its differences.

    Args:
        runs: finished runs; seeds a variant shares with the baseline are paired.
        baseline: the method to compare with. Where it was run with several settings, each variant is compared with the
            one that shares most of its own changes.
        order: methods in the order of the rows; others follow by name.
        by: another figure of the test split than the task's score, and which way is better ("higher" or "lower").
    """
    score, better = by or (runs[0].result["score"], runs[0].result["better"])
    variants: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: (place(run.config["method"], order), run.variant, run.seed)):
        variants.setdefault(run.variant, []).append(run)
    bases = [name for name, found in variants.items() if found[0].config["method"] == baseline] or [
        next(iter(variants))
    ]
    changes = {name: changes_of(found[0]) for name, found in variants.items()}
    common = set.intersection(*changes.values())

    def base_of(name: str) -> str:
        mine = changes[name]
        return max(bases, key=lambda base: (base == name, changes[base] <= mine, len(changes[base] & mine)))

    rows = []
    for name, found in variants.items():
        method, own = found[0].config["method"], sorted(changes[name] - common)
        label = method + (f" ({', '.join(own)})" if own and not common >= changes[name] else "")
        reference = {run.seed: run for run in variants[base_of(name)]}
        rows.append(row(name, label, found, reference, base_of(name) == name, score))
    config = runs[0].config
    return Comparison(config["task"], config["scale"], score, better, bases[0], tuple(corrected(rows)))


def corrected(rows: Sequence[Row]) -> list[Row]:
    """The rows with Holm's correction for all differences of the table."""
    p_values = {
        place: 1.0 if row.difference.p_value is None else row.difference.p_value
        for place, row in enumerate(rows)
        if row.difference and row.difference.interval is not None and row.difference.p_value == row.difference.p_value
    }
    adjusted = dict(zip(p_values, holm(list(p_values.values()))))
    return [
        replace(row, difference=replace(row.difference, adjusted=adjusted[place]))
        if place in adjusted and row.difference
        else row
        for place, row in enumerate(rows)
    ]


def changes_of(run: Run) -> set[str]:
    """What the user changed for a run, as `name=value`."""
    return {f"{name}={value}" for name, value in run.config.get("overrides", {}).items()}


def place(method: str, order: Sequence[str]) -> int:
    """Where a method stands in a given order; unknown ones last."""
    return order.index(method) if method in order else len(order)


def row(variant: str, label: str, runs: Sequence[Run], reference: Mapping[int, Run], is_base: bool, score: str) -> Row:
    """One line: `runs` of a variant against the baseline's runs by seed."""
    values = [run.figure(score) for run in runs]
    common = [run for run in runs if run.seed in reference]
    difference = None
    if common and not is_base:
        difference = paired(
            [reference[run.seed].figure(score) for run in common], [run.figure(score) for run in common]
        )
    figures = {name for run in runs for name in run.result["test"]} - {score}
    others = {
        name: mean([v for run in runs if (v := run.result["test"].get(name)) is not None])
        for name in sorted(figures, key=lambda name: (place(name, STANDARD), name))
    }
    base = list(reference.values())
    return Row(
        variant,
        label,
        tuple(runs),
        tuple(values),
        mean(values),
        spread(values),
        difference,
        relative(runs, base, "seconds_per_step"),
        relative(runs, base, "passes_per_step"),
        others,
        not common and not is_base,
    )


def relative(runs: Sequence[Run], base: Sequence[Run], cost: str) -> float:
    """A cost per step as a multiple of the baseline's; nan where there is none."""
    below = mean([run.result[cost] for run in base])
    return mean([run.result[cost] for run in runs]) / below if below else float("nan")


def comparisons(runs: Sequence[Run], tasks: Mapping[str, Task]) -> list[Comparison]:
    """One table per task and scale found among the runs."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.config["task"], run.config["scale"]), []).append(run)
    found = []
    known = list(tasks)
    for (name, _), group in sorted(
        groups.items(), key=lambda item: (place(item[0][0], known), place(item[0][1], SCALES))
    ):
        task = tasks.get(name)
        order = [method.name for method in task.methods] if task else []
        baseline = task.baseline if task else group[0].result.get("baseline", "plain")
        found.append(compare(group, baseline, order))
    return found
