"""Who works on which trial: claims that cannot collide, signs of life, and taking over from the dead.

A claim is a trial created in one transaction with its point and its worker in it. Of the trials that hold one point the
lowest number counts, and numbers are given out by the storage one by one: every worker comes to the same verdict without
a lock. A worker touches its trials every `BEAT` seconds. One that is dead (seen at once on the same machine) or silent
for `GRACE` seconds loses them, and the next worker that asks gets their points.
"""

import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import FrozenTrial, TrialState

from ..errors import RunError, first_line
from ..runs.files import log
from .plan import Plan

BEAT, GRACE = 10.0, 90.0


def machine() -> str:
    """This machine since it was started, and the processes that can be seen from here."""
    found = [socket.gethostname()]
    for path in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/pid"):
        with suppress(OSError):
            found.append(os.readlink(path) if "ns" in path else Path(path).read_text().strip())
    return "/".join(found)


def born(process: int) -> str | None:
    """When a process of this machine began, which tells it from a later one of the same number; None if it is gone."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        with suppress(OSError):
            os.kill(process, 0)
            return ""
    return None


def me() -> dict[str, Any]:
    """How this process signs its claims."""
    return {"machine": machine(), "process": os.getpid(), "born": born(os.getpid())}


def dead(worker: Mapping[str, Any]) -> bool:
    """Whether a worker is known not to live any more: only its own machine can tell."""
    return worker.get("machine") == machine() and born(int(worker["process"])) != worker.get("born")


def counts(trial: FrozenTrial) -> bool:
    """Whether a trial stands for its point: under way, complete, or diverged."""
    return trial.state in (TrialState.RUNNING, TrialState.COMPLETE) or bool(trial.user_attrs.get("diverged"))


def trials_of(study: optuna.Study) -> list[FrozenTrial]:
    """Every trial of a study; a storage that was damaged is one sentence, whatever its format stumbles over."""
    try:
        return study.get_trials(deepcopy=False)
    except optuna.exceptions.StorageInternalError:  # a server that is away
        raise
    except Exception as error:
        raise RunError(f"the sweep's storage is damaged ({type(error).__name__}: {first_line(error)})") from error


def settled(study: optuna.Study) -> list[FrozenTrial]:
    """The trials that ended by themselves: with a score, or diverged."""
    return [trial for trial in trials_of(study) if counts(trial) and trial.state != TrialState.RUNNING]


class Claims:
    """One worker's view of a study.

    Args:
        plan: what is searched.
        study: shared with the other workers.
        wanted: trials in all.
    """

    def __init__(self, plan: Plan, study: optuna.Study, wanted: int) -> None:
        self.plan, self.study, self.wanted = plan, study, wanted
        self.mine: dict[int, int] = {}  # number -> id of the trials under way here
        self.seen: dict[int, tuple[Any, float]] = {}  # number -> last sign of life and when it was noticed

    def take(self) -> optuna.Trial | None:
        """The next trial for this worker; None where all are done or in other hands."""
        while True:
            trials = trials_of(self.study)
            live = [trial for trial in trials if counts(trial)]
            point, attributes = self.next_point(trials, live)
            if point is None or len(live) >= self.wanted:
                return None
            trial = self.create(point, {**attributes, "worker": me()})
            if not self.beaten(trial.number, point, attributes):
                self.mine[trial.number] = trial._trial_id
                return self.suggested(trial)
            self.end(trial.number, TrialState.FAIL)

    def next_point(
        self, trials: Sequence[FrozenTrial], live: Sequence[FrozenTrial]
    ) -> tuple[dict[str, Any] | None, dict[str, Any]]:
        """What to try next: the first free point of a grid, one that a worker lost, or (empty) what Optuna suggests."""
        if self.plan.points is not None:
            taken = [trial.params for trial in live]
            return next((point for point in self.plan.points if point not in taken), None), {}
        again = {trial.user_attrs.get("again") for trial in live}
        for trial in trials:
            lost = trial.state == TrialState.FAIL and trial.user_attrs.get("lost") and not counts(trial)
            if lost and len(trial.params) == len(self.plan.ranges):
                first = trial.user_attrs.get("again", trial.number)
                if first not in again and trial.number not in again:
                    return dict(trial.params), {"again": first}
        return {}, {}

    def create(self, point: Mapping[str, Any], attributes: Mapping[str, Any]) -> optuna.Trial:
        """A trial that is under way from the start, with its point in it."""
        template = FrozenTrial(
            number=-1,
            trial_id=-1,
            state=TrialState.RUNNING,
            value=None,
            values=None,
            params=dict(point),
            distributions={name: self.plan.ranges[name] for name in point},
            user_attrs=dict(attributes),
            system_attrs={},
            intermediate_values={},
            datetime_start=datetime.now(),
            datetime_complete=None,
        )
        number = self.study._storage.create_new_trial(self.study._study_id, template_trial=template)
        return optuna.trial.Trial(self.study, number)

    def beaten(self, number: int, point: Mapping[str, Any], attributes: Mapping[str, Any]) -> bool:
        """Whether a trial of a lower number stands for the same point, or enough of them for all that is wanted."""
        before = [trial for trial in trials_of(self.study) if trial.number < number and counts(trial)]
        if len(before) >= self.wanted:
            return True
        if self.plan.points is not None:
            return any(trial.params == point for trial in before)
        again = attributes.get("again")
        return again is not None and any(trial.user_attrs.get("again") == again for trial in before)

    def suggested(self, trial: optuna.Trial) -> optuna.Trial:
        """`trial` with a value for every parameter; the suggestion depends on its number and what is known, no more."""
        self.study.sampler = optuna.samplers.TPESampler(seed=trial.number)
        for name, found in self.plan.ranges.items():
            if isinstance(found, CategoricalDistribution):
                trial.suggest_categorical(name, found.choices)
            elif isinstance(found, FloatDistribution):
                trial.suggest_float(name, found.low, found.high, log=found.log)
            else:
                trial.suggest_int(name, found.low, found.high)
        return trial

    def end(self, number: int, state: TrialState, value: float | None = None) -> bool:
        """Close a trial; False where somebody else did, because we were thought dead."""
        self.mine.pop(number, None)
        try:
            self.study.tell(number, value, state=state)
        except (ValueError, RuntimeError) as error:
            log.info("trial %d was closed by another worker: %s", number, error)
            return False
        return True

    def give_back(self) -> None:
        """Leave what is under way here to whoever comes next, this worker's successor included."""
        for number, identity in list(self.mine.items()):
            self.lose(number, identity)

    def lose(self, number: int, identity: int) -> None:
        """Close a trial that ended without a verdict; its point is free again."""
        with suppress(RuntimeError):  # closed already
            self.study._storage.set_trial_user_attr(identity, "lost", True)
        self.end(number, TrialState.FAIL)

    def take_back(self) -> None:
        """Free what dead or silent workers hold."""
        for trial in trials_of(self.study):
            if trial.state != TrialState.RUNNING or trial.number in self.mine:
                continue
            beat, now = trial.user_attrs.get("beat"), time.monotonic()
            known, since = self.seen.get(trial.number, (None, now))
            if trial.number not in self.seen or beat != known:
                self.seen[trial.number], since = (beat, now), now
            if dead(trial.user_attrs.get("worker", {})) or now - since > GRACE:
                log.warning("trial %d is taken back: its worker is gone", trial.number)
                self.lose(trial.number, trial._trial_id)

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Give signs of life for the trials under way here while the block runs."""
        over = threading.Event()

        def beat() -> None:
            count = 0
            while not over.wait(BEAT):
                count += 1
                for identity in list(self.mine.values()):
                    try:
                        self.study._storage.set_trial_user_attr(identity, "beat", count)
                    except Exception as error:  # a server that is away for a moment, or a trial that is closed
                        log.info("no sign of life could be given: %s", error)

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
