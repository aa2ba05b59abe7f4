"""Searching settings with Optuna: resumable, shareable, and drawn as the papers draw it (score against epsilon)."""

import hashlib
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import RDBStorage
from optuna.trial import TrialState

from .cli.parse import parse_value
from .compare import jobs, read_run
from .errors import Diverged, LabError, RunError
from .pool import Job
from .runs.files import locked, read_json, write_json
from .runs.shapes import SWEEP
from .statistics import mean
from .task import Task, Value

Range = FloatDistribution | IntDistribution | CategoricalDistribution


def parse_param(text: str) -> tuple[str, Range]:
    """A parameter and its range as typed.

    >>> parse_param("radius=0.1:10:log")
    ('radius', FloatDistribution(high=10.0, log=True, low=0.1, step=None))
    >>> parse_param("rounds=1:4")
    ('rounds', IntDistribution(high=4, log=False, low=1, step=1))
    >>> parse_param("radius=0.1,1")
    ('radius', CategoricalDistribution(choices=(0.1, 1)))
    """
    name, equals, values = text.partition("=")
    parts = values.split(":")
    try:
        if not equals or not name or not values:
            raise ValueError
        if len(parts) == 1:
            listed = [part.strip() for part in values.split(",")]
            if not all(listed):
                raise ValueError
            return name, CategoricalDistribution(list(dict.fromkeys(map(parse_value, listed))))
        low, high = (parse_value(part) for part in parts[:2])
        log = parts[2:] == ["log"]
        if parts[2:] not in ([], ["log"]):
            raise ValueError
        if isinstance(low, int) and isinstance(high, int) and not log:
            return name, IntDistribution(low, high)
        return name, FloatDistribution(float(low), float(high), log=log)
    except (ValueError, TypeError) as error:
        raise LabError(
            f"--param {text!r} does not fit; write name=low:high, name=low:high:log or a list name=a,b,c"
        ) from error


@dataclass(frozen=True)
class Plan:
    """What to search and where."""

    task: Task
    method: str
    scale: str
    seeds: Sequence[int]
    ranges: Mapping[str, Range]
    out: Path
    data: Path | None = None
    overrides: Mapping[str, Value] = field(default_factory=dict)
    storage: str | None = None

    @property
    def title(self) -> str:
        """Of the summary: sweeps over the same parameters share it, whatever their ranges."""
        changes = "".join(f" {key}={value}" for key, value in sorted(self.overrides.items()))
        seeds = ",".join(map(str, self.seeds))
        return f"{self.task.name} {self.scale} {self.method} [{' '.join(self.ranges)}] seeds {seeds}{changes}"

    @property
    def name(self) -> str:
        """Of the study, which goes on as long as the kind of every range is the same; a list must be the same list."""
        kinds = (
            f"{name} in {', '.join(map(str, found.choices))}"
            if isinstance(found, CategoricalDistribution)
            else f"{name} {type(found).__name__}{' log' * found.log}"
            for name, found in self.ranges.items()
        )
        return f"{self.title}: {'; '.join(kinds)}"

    @property
    def grid(self) -> dict[str, Sequence[Any]] | None:
        """The points to visit when every range is a list."""
        lists = {
            name: found.choices for name, found in self.ranges.items() if isinstance(found, CategoricalDistribution)
        }
        return dict(lists) if len(lists) == len(self.ranges) else None


@dataclass(frozen=True)
class Trial:
    """A finished trial: means over the seeds."""

    settings: Mapping[str, Any]
    value: float  # validation, which decides
    test: float
    spread: Sequence[float]  # validation by seed


def study_of(plan: Plan) -> optuna.Study:
    """The study of a plan, as it was left. Trials that a killed process left behind are closed and taken up again."""
    try:
        plan.out.mkdir(parents=True, exist_ok=True)
        storage = RDBStorage(plan.storage or f"sqlite:///{plan.out / 'sweep.db'}")
        study = optuna.create_study(
            storage=storage,
            study_name=plan.name,
            sampler=optuna.samplers.TPESampler(seed=0),
            direction="maximize" if plan.task.better == "higher" else "minimize",
            load_if_exists=True,
        )
    except OSError as error:
        raise RunError(f"cannot write to {plan.out}: {error.strerror}; choose another --out") from error
    except Exception as error:  # whatever database driver the URL asked for
        where = plan.storage or plan.out / "sweep.db"
        raise RunError(f"cannot open the sweep's storage {where}: {str(error).splitlines()[0]}") from error
    if plan.storage is None:  # the SQLite file is this machine's alone, and its lock says nobody else is at work
        for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            study.tell(trial.number, state=TrialState.FAIL)
            if plan.grid is None:
                study.enqueue_trial(trial.params, skip_if_exists=False)
    return study


def sweep_all(plan: Plan, trials: int | None, cores: int | None) -> list[Trial]:
    """Work until `trials` are complete; returns all finished ones, the best first.

    Args:
        plan: what to search.
        trials: how many in all, those of earlier calls included; None means every point of a grid, else 20.
        cores: runs at once: trials are drawn in batches so that all cores have work.
    """
    from .cli.work import do_jobs, usable_cores

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    raise_early(plan)
    points = math.prod(len(choices) for choices in plan.grid.values()) if plan.grid else None
    wanted = min(trials or points or 20, points or math.inf)
    workers = cores or usable_cores()
    with locked(plan.out / "sweep"):
        study = study_of(plan)
        while (left := int(wanted) - len(settled(study))) > 0:
            batch = [ask(plan, study) for _ in range(min(left, -(-workers // len(plan.seeds))))]
            runs = {trial.number: jobs_of(plan, trial.params) for trial in batch}
            unique = list(dict.fromkeys(job for found in runs.values() for job in found))
            failures = do_jobs(unique, workers)
            for trial in batch:
                settle(plan, study, trial, runs[trial.number], failures)
            for error in failures.values():
                if error.exit_code != Diverged.exit_code:
                    raise error
        found = sorted(finished_trials(study), key=lambda t: -t.value if plan.task.better == "higher" else t.value)
        file = plan.out / "sweep" / f"{file_name(plan)}.json"
        write_json(file, summary(plan, found, read_json(file, SWEEP) if file.exists() else {}))
    return found


def ask(plan: Plan, study: optuna.Study) -> optuna.Trial:
    """The next trial: the first point of a grid that nobody has visited, or what Optuna suggests."""
    if plan.grid is not None:
        taken = [trial.params for trial in (*settled(study), *study.get_trials(False, (TrialState.RUNNING,)))]
        points = (dict(zip(plan.grid, values)) for values in itertools.product(*plan.grid.values()))
        study.enqueue_trial(next(point for point in points if point not in taken))
    return study.ask(dict(plan.ranges))


def file_name(plan: Plan) -> str:
    """A file name for a plan."""
    return hashlib.sha256(plan.title.encode()).hexdigest()[:12]


def raise_early(plan: Plan) -> None:
    """See that names, types and values fit: every value of the lists, both ends of the ranges."""
    for name, found in plan.ranges.items():
        if name in plan.overrides:
            raise LabError(f"{name} is given by --param and by --set; choose one")
        for value in found.choices if isinstance(found, CategoricalDistribution) else (found.low, found.high):
            plan.task.setting(plan.method, plan.scale, overrides={**plan.overrides, name: value})


def jobs_of(plan: Plan, params: Mapping[str, Any]) -> list[Job]:
    """The runs of one trial."""
    rounded = {name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in params.items()}
    changes = {**plan.overrides, **rounded}
    note = ", ".join(f"{name}={value}" for name, value in rounded.items())
    found = jobs(plan.task, [plan.method], plan.seeds, plan.scale, plan.out, plan.data, changes)
    return [replace(job, note=note) for job in found]


def settled(study: optuna.Study) -> list[optuna.trial.FrozenTrial]:
    """The trials that ended by themselves: with a score, or diverged."""
    ended = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.FAIL))
    return [trial for trial in ended if trial.state == TrialState.COMPLETE or trial.user_attrs.get("diverged")]


def settle(
    plan: Plan, study: optuna.Study, trial: optuna.Trial, work: Sequence[Job], failures: Mapping[Job, LabError]
) -> None:
    """Tell the study how a trial went; a diverged one counts, without a score."""
    wrong = [failures[job].exit_code for job in work if job in failures]
    runs = [] if wrong else [read_run(job.path) for job in work]
    values = [run.result["validation"][plan.task.score] for run in runs]
    if wrong or None in values:
        trial.set_user_attr("diverged", not wrong or Diverged.exit_code in wrong)
        study.tell(trial, state=TrialState.FAIL)
        return
    trial.set_user_attr("test", mean([run.value for run in runs]))
    trial.set_user_attr("validation", values)
    study.tell(trial, mean(values))


def finished_trials(study: optuna.Study) -> list[Trial]:
    """The complete trials of a study."""
    return [
        Trial(trial.params, float(trial.values[0]), trial.user_attrs["test"], trial.user_attrs["validation"])
        for trial in settled(study)
        if trial.state == TrialState.COMPLETE
    ]


def summary(plan: Plan, trials: Sequence[Trial], before: Mapping[str, Any]) -> dict[str, Any]:
    """What the report draws: these trials, and those `before` that earlier sweeps of the same parameters made."""
    now = [
        {"settings": dict(t.settings), "value": t.value, "test": t.test, "validation": list(t.spread)} for t in trials
    ]
    known = [entry["settings"] for entry in now]
    every = now + [entry for entry in before.get("trials", []) if entry["settings"] not in known]
    log = {name: isinstance(found, FloatDistribution) and found.log for name, found in plan.ranges.items()}
    return {
        "name": plan.title,
        "task": plan.task.name,
        "scale": plan.scale,
        "method": plan.method,
        "score": plan.task.score,
        "better": plan.task.better,
        "seeds": list(plan.seeds),
        "log": log,
        "trials": sorted(every, key=lambda t: -t["value"] if plan.task.better == "higher" else t["value"]),
    }
