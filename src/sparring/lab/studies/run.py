"""Do the runs that a study still needs and record each as it ends."""

import shutil
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..errors import Diverged, LabError, RunError
from ..pool import Job, Orders, execute_all
from ..runs import environment
from ..runs.files import locked, read_json
from ..runs.folder import folder_of, read_metrics
from .plan import Progress, Wanted
from .records import append, read
from .study import Study

Say = Callable[[str], None]


def entries(study: Study, run: Wanted, path: Path) -> dict[str, Any]:
    """The line of a run that has ended: its result, or that it diverged. Tuning runs leave no figure of the test split."""
    about = environment.describe()
    line: dict[str, Any] = {
        "study": study.name,
        "arm": run.arm.name,
        "role": run.role,
        "seed": run.setting.seed,
        "task": run.setting.task,
        "scale": run.setting.scale,
        "method": run.setting.method,
        "trial": dict(run.trial),
        "values": dict(run.setting.values),
        "version": study.version,
        "commit": about["commit"],
        "versions": about["packages"],
        "cpu": about["cpu"],
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    if not (path / "result.json").exists():
        return {**line, "diverged": True, "validation": None, "test": None}
    result, epochs = read_json(path / "result.json"), read_metrics(path)
    return {
        **line,
        "validation": result["validation"],
        "test": result["test"] if run.role == "evaluation" else None,
        "epochs": result["epochs"],
        "best_epoch": result["best_epoch"],
        "passes_per_step": result["passes_per_step"],
        "seconds_per_step": result["seconds_per_step"],
        "seconds": sum(epoch["seconds_per_step"] * len(epoch["losses"]) for epoch in epochs),
        "curve": [epoch["validation"].get(study.tuned_on or study.metric) for epoch in epochs],
        "diagnostics": epochs[-1]["diagnostics"] if epochs else {},
    }


def busy(path: Path) -> bool:
    """Whether another process is at work in a run folder."""
    try:
        with locked(path):
            return False
    except RunError:
        return True


class Worklist:
    """The runs still to do, one by one, read anew from the records each time so that others may work on them too."""

    def __init__(
        self,
        study: Study,
        file: Path,
        out: Path,
        data: Path | None,
        limit: int | None,
        until: float | None,
        say: Say,
        arms: Collection[str],
    ) -> None:
        self.study, self.file, self.out, self.data, self.say, self.arms = study, file, out, data, say, arms
        self.left, self.until = limit, until
        self.begun: dict[Job, Wanted] = {}
        self.started, self.recorded = time.monotonic(), 0

    def __iter__(self) -> Iterator[Job | None]:
        while True:
            if (self.left is not None and self.left <= 0) or (self.until and time.monotonic() > self.until):
                return
            progress, paths = self.progress(), {job.path for job in self.begun}
            missing = (run for run in progress.missing() if run.arm.name in self.arms)
            waiting = ((run, folder_of(self.out, run.setting)) for run in missing)
            run, path = next(
                ((run, path) for run, path in waiting if path not in paths and not busy(path)), (None, self.out)
            )
            if run is None:
                yield None
                continue
            job = Job(run.setting, path, run.role)
            self.begun[job] = run
            self.left = None if self.left is None else self.left - 1
            yield job

    def progress(self) -> Progress:
        """The study beside the records as they are now."""
        return Progress(self.study, read(self.file), self.data)

    def done(self, job: Job) -> None:
        """A run has ended: record it, remove its folder, say how far the study is."""
        if not (job.path / "result.json").exists():
            return
        line = entries(self.study, self.begun[job], job.path)
        append(self.file, line)
        shutil.rmtree(job.path)
        self.recorded += 1
        name = self.study.tuned_on or self.study.metric
        value = line["validation"].get(name)
        shown = "undefined" if value is None else f"{value:.4g}"
        self.say(f"{self.begun[job].label}: validation {name} {shown}; {self.outlook()}")

    def outlook(self) -> str:
        """How many runs are recorded and about how long the others take."""
        progress = self.progress()
        left = progress.total - progress.done
        minutes = left * (time.monotonic() - self.started) / max(self.recorded, 1) / 60
        return f"{progress.done} of {progress.total} runs" + (f", about {minutes:.0f} min left" if left else "")


def run_study(
    study: Study,
    records: Path,
    out: Path,
    cores: int = 1,
    data: Path | None = None,
    limit: int | None = None,
    minutes: float | None = None,
    command: str = "",
    say: Say = print,
    arms: Sequence[str] | None = None,
) -> int:
    """Do the missing runs; returns how many are still missing.

    Args:
        study: what to run.
        records: folder of the files of records.
        out: where run folders live until their run is recorded.
        cores: runs at once, one thread each.
        data: folder of the real data.
        limit: begin no more than so many runs.
        minutes: begin no run after so many minutes.
        command: what was typed.
        say: called with a line for every run that ends.
        arms: only these arms; None: all of them.
    """
    if study.missing:
        raise LabError(
            f"study {study.name} needs {' and '.join(study.missing)}, without which its task trains another model; install it first"
        )
    chosen = [study.arm(name).name for name in arms] if arms is not None else [arm.name for arm in study.arms]
    until = None if minutes is None else time.monotonic() + 60 * minutes
    while True:
        work = Worklist(study, records / study.file, out, data, limit, until, say, chosen)
        failures = execute_all(work, cores, Orders(command), done=work.done)
        diverged = [job for job, error in failures.items() if error.exit_code == Diverged.exit_code]
        for job in diverged:
            append(work.file, entries(study, work.begun[job], job.path))
            shutil.rmtree(job.path)
            say(f"{work.begun[job].label}: diverged")
        for job, error in failures.items():
            if job not in diverged:
                failed = LabError(f"{work.begun[job].label} failed: {error}")
                failed.exit_code = error.exit_code
                raise failed from error
        limit = work.left
        if not diverged:
            progress = work.progress()
            return progress.total - progress.done
