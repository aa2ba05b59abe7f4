"""Working through a sweep: claim trials, do their runs, tell the study, until nothing is left to do."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import FloatDistribution
from optuna.trial import TrialState

from ..compare import read_run
from ..errors import Diverged, LabError, RunError, first_line
from ..pool import Job
from ..runs.files import Damaged, log, read_json, write_json
from ..runs.shapes import SWEEP
from ..statistics import mean
from .claims import Claims, settled
from .plan import Plan, file_name, jobs_of, raise_early
from .storage import study_of

PAUSE = 0.5  # seconds between two looks at what other workers do


@dataclass(frozen=True)
class Trial:
    """A finished trial: means over the seeds."""

    settings: Mapping[str, Any]
    value: float  # validation, which decides
    test: float
    spread: Sequence[float]  # validation by seed


def sweep_all(plan: Plan, trials: int | None, cores: int | None) -> list[Trial]:
    """Work until `trials` are complete; returns all finished ones, the best first.

    Any number of workers may do this on one storage at the same time, and die at any moment.

    Args:
        plan: what to search.
        trials: how many in all, those of earlier calls included; None means every point of a grid, else 20.
        cores: runs at once: trials are drawn in batches so that all cores have work.
    """
    from ..cli.work import usable_cores

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    raise_early(plan)
    points = len(plan.points) if plan.points is not None else None
    wanted = int(min(trials or points or 20, points or math.inf))
    workers = cores or usable_cores()
    study = study_of(plan)
    claims = Claims(plan, study, wanted)
    try:
        while len(settled(study)) < wanted:
            claims.take_back()
            batch: list[optuna.Trial] = []
            while len(batch) < -(-workers // len(plan.seeds)) and (trial := claims.take()) is not None:
                batch.append(trial)
            if batch:
                with claims.beating():
                    do_batch(plan, claims, batch, workers)
            else:  # the rest is in other hands: be there in case they die
                time.sleep(PAUSE)
        found = sorted(finished_trials(study), key=lambda t: -t.value if plan.task.better == "higher" else t.value)
    except optuna.exceptions.StorageInternalError as error:
        where = plan.storage or plan.out / "sweep.db"
        raise RunError(f"the sweep's storage {where} fails: {first_line(error.__cause__ or error)}") from error
    finally:
        give_back(claims)
    file = plan.out / "sweep" / f"{file_name(plan)}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, summary(plan, found, earlier(file)))
    return found


def earlier(file: Path) -> dict[str, Any]:
    """The summary that earlier sweeps left; one that is damaged is written anew from what the storage holds."""
    try:
        return read_json(file, SWEEP) if file.exists() else {}
    except Damaged as error:
        log.warning("%s; it is written anew, without what sweeps over other ranges found", error)
        return {}


def give_back(claims: Claims) -> None:
    """Free what is still claimed; where the storage is gone too, others will notice by the silence."""
    try:
        claims.give_back()
    except optuna.exceptions.StorageInternalError:
        return


def do_batch(plan: Plan, claims: Claims, batch: Sequence[optuna.Trial], workers: int) -> None:
    """Do the runs of some trials and tell how they went."""
    from ..cli import work

    runs = {trial.number: jobs_of(plan, trial.params) for trial in batch}
    unique = list(dict.fromkeys(job for found in runs.values() for job in found))
    failures = work.do_jobs(unique, workers, patience=math.inf)
    for trial in batch:
        settle(plan, claims, trial, runs[trial.number], failures)
    for error in failures.values():
        if error.exit_code != Diverged.exit_code:
            raise error


def settle(
    plan: Plan, claims: Claims, trial: optuna.Trial, work: Sequence[Job], failures: Mapping[Job, LabError]
) -> None:
    """Tell the study how a trial went; a diverged one counts, without a score."""
    wrong = [failures[job].exit_code for job in work if job in failures]
    if wrong and Diverged.exit_code not in wrong:
        return claims.lose(trial.number, trial._trial_id)
    runs = [] if wrong else [read_run(job.path) for job in work]
    values = [run.result["validation"][plan.task.score] for run in runs]
    try:
        if wrong or None in values:
            trial.set_user_attr("diverged", True)
            claims.end(trial.number, TrialState.FAIL)
            return None
        trial.set_user_attr("test", mean([run.value for run in runs]))
        trial.set_user_attr("validation", values)
    except RuntimeError:  # we were thought dead, and another worker has the point
        claims.mine.pop(trial.number, None)
        return None
    claims.end(trial.number, TrialState.COMPLETE, mean(values))
    return None


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
        "changes": dict(plan.setting.overrides),
        "log": log,
        "trials": sorted(every, key=lambda t: -t["value"] if plan.task.better == "higher" else t["value"]),
    }
