"""A study as its records show it: one row for every arm, one finding for every part of the claim."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..statistics import Difference, mean, paired, spread
from ..task import Value
from .plan import Progress
from .records import Record, read
from .study import Arm, Expect, Study
from .verdict import FEWEST, Finding, Verdict, judge_all, together


@dataclass(frozen=True)
class Row:
    """One arm: what was chosen for it, how it did on the evaluation seeds, what it cost."""

    arm: Arm
    trial: Mapping[str, Value] | None
    values: Mapping[int, float]
    diverged: int  # evaluation runs without a figure, which are in no mean
    to_baseline: Difference | None
    to_control: Difference | None
    passes: float
    seconds: float

    @property
    def mean(self) -> float:
        return mean(list(self.values.values()))

    @property
    def spread(self) -> float | None:
        return spread(list(self.values.values()))


@dataclass(frozen=True)
class Results:
    """Everything that is shown about a study."""

    study: Study
    rows: tuple[Row, ...]
    findings: tuple[tuple[Expect, Finding], ...]
    done: int
    total: int
    seconds: float  # CPU time of all of its records
    best_epoch: float  # of the baseline, mean over the seeds; of `epochs`
    epochs: float

    @property
    def hours_left(self) -> float | None:
        """CPU hours that the missing runs take if they are like the recorded ones; the study's own estimate before there is one."""
        return (self.total - self.done) * self.seconds / self.done / 3600 if self.done else self.study.hours

    @property
    def verdict(self) -> Verdict:
        return together([finding for _, finding in self.findings])

    @property
    def sentence(self) -> str:
        """The verdict in one sentence."""
        if not self.done:
            hours = (
                ""
                if self.study.hours is None
                else f"; about {self.study.hours:.2g} CPU hours for all of it, an estimate"
            )
            return f"open: nothing has been run{hours}"
        costs = {row.arm.name: row.seconds for row in self.rows}
        parts = [describe(self.study, expect, finding, costs) for expect, finding in self.findings]
        parts += [f"{row.arm.name} diverged with {row.diverged} seeds" for row in self.rows if row.diverged]
        return f"{self.verdict}: {'; '.join(parts)}"


def describe(study: Study, expect: Expect, finding: Finding, costs: Mapping[str, float]) -> str:
    """One part of a claim in words; `costs` are seconds of a run of each arm."""
    what = f"{expect.arm} against {expect.than}"
    if not finding.gains:
        return f"{what} has not been run"
    text = f"{what} {finding.mean:+.3g}"
    if finding.interval is not None:
        text += f" [{finding.interval[0]:+.3g}, {finding.interval[1]:+.3g}]"
    if expect.effect is not None:
        text += f", reported {expect.effect:+.3g}"
    if finding.verdict == "refuted" and finding.interval is not None and finding.interval[0] > 0:
        return f"{text}: helps, but by less than half of what is reported"
    if finding.verdict == "open":
        if len(finding.gains) < FEWEST:
            return f"{text}: open after {len(finding.gains)} of {len(study.seeds)} seeds"
        if finding.alike:
            return f"{text}: open, the same with every seed, which says nothing of other seeds"
        if finding.seeds is None:
            return f"{text}: open, more than 1,000 seeds would be needed"
        hours = (finding.seeds - len(finding.gains)) * (costs[expect.arm] + costs[expect.than]) / 3600
        return f"{text}: open, {finding.seeds} seeds would settle it ({hours:.2g} CPU hours more)"
    return f"{text}: {finding.verdict}"


def results(study: Study, folder: Path, data: Path | None = None) -> Results:
    """Read the records of a study and judge them."""
    progress = Progress(study, read(folder / study.file), data)
    found = {arm.name: progress.evaluation(arm) for arm in study.arms}
    values = {name: figures(study, records) for name, records in found.items()}

    def against(name: str, other: str) -> Difference | None:
        common = [seed for seed in values[name] if other in values and seed in values[other]]
        if not common or name == other:
            return None
        return paired([values[other][seed] for seed in common], [values[name][seed] for seed in common])

    rows = []
    for arm in study.arms:
        records = list(found[arm.name].values())
        rows.append(
            Row(
                arm,
                progress.chosen(arm),
                values[arm.name],
                len(records) - len(values[arm.name]),
                against(arm.name, study.baseline),
                against(arm.name, arm.control),
                mean([r.entries["passes_per_step"] for r in records if "passes_per_step" in r.entries]),
                mean([r.entries["seconds"] for r in records if "seconds" in r.entries]),
            )
        )
    parts = []
    for expect in study.expects:
        mine, theirs = values[expect.arm], values[expect.than]
        parts.append(([study.gain(theirs[seed], mine[seed]) for seed in mine if seed in theirs], expect.effect))
    spent = sum(record.entries.get("seconds") or 0.0 for record in progress.counted())
    findings = tuple(zip(study.expects, judge_all(parts), strict=True))
    plain = [record.entries for record in found[study.baseline].values() if "epochs" in record.entries]
    best, epochs = (mean([entries[name] for entries in plain]) for name in ("best_epoch", "epochs"))
    return Results(study, tuple(rows), findings, progress.done, progress.total, spent, best, epochs)


def figures(study: Study, records: Mapping[int, Record]) -> dict[int, float]:
    """The deciding figure by seed; a run that diverged has none and is left out of the means."""
    found = {seed: record.figure("test", study.metric) for seed, record in sorted(records.items())}
    return {seed: value for seed, value in found.items() if not math.isnan(value)}
