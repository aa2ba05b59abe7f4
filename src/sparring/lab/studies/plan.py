"""Which runs a study still needs, and what its tuning chose."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import unknown
from ..registry import task as find_task
from ..statistics import mean
from ..task import Setting, Value
from .records import Record, Role
from .study import Arm, Study


@dataclass(frozen=True)
class Wanted:
    """One run of a study."""

    arm: Arm
    trial: Mapping[str, Value]
    role: Role
    setting: Setting

    @property
    def label(self) -> str:
        """How progress calls it."""
        changes = ", ".join(f"{name}={value}" for name, value in self.trial.items())
        return " ".join(filter(None, (self.role, self.arm.name, changes, f"seed {self.setting.seed}")))


def wanted(study: Study, arm: Arm, trial: Mapping[str, Value], role: Role, data: Path | None = None) -> list[Wanted]:
    """The runs of one trial of one arm, seed by seed."""
    task, method = find_task(study.task), arm.method or arm.name
    extra = study.tuning if role == "tuning" else {}
    known = task.setting(method, study.scale).values
    common = {name: value for name, value in study.settings.items() if name in known}
    changes = {**common, **arm.settings, **trial, **extra}
    seeds = study.tuning_seeds if role == "tuning" else study.seeds
    settings = [task.setting(method, study.scale, seed, data, changes) for seed in seeds]
    if study.missing:
        settings = [without_derived(setting, changes) for setting in settings]
    return [Wanted(arm, trial, role, setting) for setting in settings]


def without_derived(setting: Setting, changes: Mapping[str, Value]) -> Setting:
    """A setting to read records with where a study cannot be run: what is derived here would tell of another model."""
    derived = setting.overrides.keys() - changes.keys()
    values, overrides = (
        {name: value for name, value in part.items() if name not in derived}
        for part in (setting.values, setting.overrides)
    )
    return replace(setting, values=values, overrides=overrides)


def check_settings(study: Study) -> None:
    """Refuse a setting of the study that the methods of none of its arms know; one that some know goes to those."""
    task = find_task(study.task)
    known = {name for arm in study.arms for name in task.setting(arm.method or arm.name, study.scale).values}
    for name in study.settings:
        if name not in known:
            raise unknown(f"setting of study {study.name}", name, known)


class Progress:
    """A study beside its records."""

    def __init__(self, study: Study, records: Sequence[Record], data: Path | None = None) -> None:
        check_settings(study)
        self.study, self.records, self.data = study, list(records), data

    def found(self, run: Wanted) -> Record | None:
        """The record of a run; the first one counts where a run was recorded twice."""
        return next((r for r in self.records if r.of(run.setting, run.role, self.study.version)), None)

    def runs(self, arm: Arm, trial: Mapping[str, Value], role: Role) -> list[Wanted]:
        return wanted(self.study, arm, trial, role, self.data)

    def score(self, arm: Arm, trial: Mapping[str, Value]) -> float | None:
        """Mean validation figure of a trial; nan where a run diverged, None while runs are missing."""
        records = [self.found(run) for run in self.runs(arm, trial, "tuning")]
        if any(record is None for record in records):
            return None
        name = self.study.tuned_on or self.study.metric
        return mean([record.figure("validation", name) for record in records if record is not None])

    def chosen(self, arm: Arm) -> Mapping[str, Value] | None:
        """The trial that validation prefers (the first of equals); None until all trials are in."""
        if not arm.trials:
            return {}
        scores = [self.score(arm, trial) for trial in arm.trials]
        known = [score for score in scores if score is not None]
        if len(known) < len(scores):
            return None
        sign = 1 if (self.study.tuned_better or self.study.better) == "higher" else -1
        order = [-math.inf if math.isnan(score) else sign * score for score in known]
        return arm.trials[order.index(max(order))]

    def evaluation(self, arm: Arm) -> dict[int, Record]:
        """Evaluation records of an arm with the trial that was chosen, by seed."""
        trial = self.chosen(arm)
        if trial is None:
            return {}
        runs = self.runs(arm, trial, "evaluation")
        return {run.setting.seed: record for run in runs if (record := self.found(run)) is not None}

    def missing(self) -> Iterator[Wanted]:
        """What can be run now: all tuning, then, seed by seed, the evaluation of every arm whose tuning is complete.

        A study that stops early has the same seeds of every arm, which is what differences are taken over.
        """
        evaluation = []
        for arm in self.study.arms:
            tuning = [run for trial in arm.trials for run in self.runs(arm, trial, "tuning") if not self.found(run)]
            yield from tuning
            if not tuning and (trial := self.chosen(arm)) is not None:
                evaluation.append(self.runs(arm, trial, "evaluation"))
        for seed in zip(*evaluation):
            yield from (run for run in seed if not self.found(run))

    @property
    def total(self) -> int:
        """How many runs the whole study has."""
        study = self.study
        return sum(len(arm.trials) * len(study.tuning_seeds) + len(study.seeds) for arm in study.arms)

    def counted(self) -> list[Record]:
        """The records that belong to the study as it stands: all trials, and the evaluation of those chosen."""
        tuning = [
            self.found(run)
            for arm in self.study.arms
            for trial in arm.trials
            for run in self.runs(arm, trial, "tuning")
        ]
        evaluation = [record for arm in self.study.arms for record in self.evaluation(arm).values()]
        return [record for record in tuning if record is not None] + evaluation

    @property
    def done(self) -> int:
        """How many of its runs are recorded."""
        return len(self.counted())
