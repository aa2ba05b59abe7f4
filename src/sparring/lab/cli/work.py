"""What several commands do: work through jobs with progress on the screen, and the demonstration."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.markup import escape

from ..errors import LabError
from ..pool import Job, Orders, execute_all, finished
from ..runs.environment import command
from ..runs.run import blamed_on_changes
from ..source import blamed_on
from ..task import Setting, Task
from ..tasks.own.rows import summary
from .answer import Answer
from .show import JobBars, bars, console


def look_first(entry: Task, wanted: Sequence[Setting]) -> None:
    """Set up the user's own runs once before anything is written: what is wrong with data or model is said at once."""
    first = wanted[0]
    if not entry.source and "contents" not in first:
        return
    with blamed_on(entry.source):
        data = entry.load(first)
        for setting in {setting.method: setting for setting in wanted}.values():
            with blamed_on_changes(setting):
                model, method = entry.build(setting, data), entry.method(setting.method)
                if method.objective:
                    method.objective(model, setting, data)
    if "splits" in data.record:
        console().print(escape(f"data: {summary(data.record)}"))


def do_jobs(
    wanted: Sequence[Job],
    cores: int | None,
    checkpoint_every: float = 30.0,
    tensorboard: bool = False,
    patience: float = 30.0,
) -> dict[Job, LabError]:
    """Do the jobs on the cores given, saying how far they are; returns the failures."""
    screen = console()
    before = sum(finished(job) for job in wanted)
    if before:
        screen.print(f"{before} of {len(wanted)} runs are there already")
    todo = [job for job in wanted if not finished(job)]
    if not todo:
        return {}
    with bars(screen) as progress:
        shown = JobBars(progress, todo)
        orders = Orders(command(), checkpoint_every, tensorboard, patience)
        return execute_all(todo, cores or usable_cores(), orders, shown.notice, shown.done)


def raise_first(failures: dict[Job, LabError]) -> None:
    """Name the runs that failed; the first one's reason decides the exit code."""
    if failures:
        (job, error), *more = failures.items()
        text = f"{job.label} failed: {error}" + (f" ({len(more)} more failed too)" if more else "")
        first = LabError(text)
        first.exit_code = error.exit_code
        first.__cause__ = error
        raise first


def write_report(out: Path, to: Path) -> None:
    """The report of everything under `out`, and a line that says where it is."""
    from ..report.build import build

    to = build(out, to / "report.html" if to.is_dir() else to, lambda text: print(f"sparring: {text}", file=sys.stderr))
    Answer.say(report=to)
    console().print(f"report: {escape(str(to))}")


def usable_cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
