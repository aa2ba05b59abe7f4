"""What the command line prints: tables and progress bars on a terminal, plain lines elsewhere."""

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from ..compare import STANDARD, Comparison, Row
from ..pool import Job, Notice
from ..report.units import with_unit
from ..report.verdicts import verdict
from .answer import Answer

PLAIN_WIDTH = 200


def console() -> Console:
    """Standard output (standard error where JSON is asked for); wide and unadorned when it is not a terminal."""
    file = sys.stderr if Answer.json else sys.stdout
    terminal = file.isatty()
    return Console(file=file, width=None if terminal else PLAIN_WIDTH, highlight=False, soft_wrap=not terminal)


def number(value: float | None, digits: int = 4) -> str:
    """A figure for a table.

    >>> number(2.34567), number(None), number(float("nan")), number(0.000123456), number(123456.0)
    ('2.346', '-', '-', '0.0001235', '123456')
    """
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:.0f}" if abs(value) >= 10**digits else f"{value:.{digits}g}"


def table(title: str, *columns: str, numbers: Sequence[str] = ()) -> Table:
    """An empty table in the house style; columns named in `numbers` are set to the right."""
    made = Table(
        title=escape(title), title_justify="left", box=box.SIMPLE_HEAD if sys.stdout.isatty() else None, pad_edge=False
    )
    for column in columns:
        made.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    return made


def difference(row: Row, better: str) -> str:
    """The paired difference with its interval, coloured when it is clear."""
    if row.difference is None:
        return "-"
    gap = row.difference
    text = f"{gap.mean:+.3g}"
    if gap.interval is not None:
        text += f"  [{gap.interval[0]:+.3g}, {gap.interval[1]:+.3g}]"
    good = (gap.mean > 0) == (better == "higher")
    return f"[{'green' if good else 'red'}]{escape(text)}[/]" if gap.clear else escape(text)


def comparison_table(comparison: Comparison, title: str = "") -> Table:
    """Mean, spread, paired difference, calibration, worst case and cost of every method."""
    arrow = "↑" if comparison.better == "higher" else "↓"
    head = f"{with_unit(comparison.score)} {arrow}"
    standard = [name for name in STANDARD if any(name in row.others for row in comparison.rows)]
    heads = [with_unit(name) for name in standard]
    made = table(
        title or f"{comparison.task} ({comparison.scale}), test {comparison.score}, {comparison.better} is better",
        "method",
        head,
        "spread",
        "difference to baseline [95 %]",
        "after Holm",
        *heads,
        "passes",
        "time",
        "seeds",
        numbers=(head, "spread", *heads, "passes", "time", "seeds"),
    )
    for row in comparison.rows:
        star = "[bold]" if row is comparison.best else ""
        made.add_row(
            star + escape(row.label),
            star + number(row.mean),
            number(row.spread, 3),
            difference(row, comparison.better),
            verdict(row, comparison.better),
            *(number(row.others.get(name), 3) for name in standard),
            f"x{row.passes:.2g}" if math.isfinite(row.passes) else "-",
            f"x{row.time:.2f}" if math.isfinite(row.time) else "-",
            str(len(row.values)),
        )
    return made


def figures_table(title: str, columns: dict[str, dict[str, Any]]) -> Table:
    """Named figures side by side, for example of the validation and the test split."""
    made = table(title, "figure", *columns, numbers=tuple(columns))
    for name in sorted({name for figures in columns.values() for name in figures}):
        made.add_row(escape(name), *(number(figures.get(name)) for figures in columns.values()))
    return made


@contextmanager
def bars(out: Console) -> Iterator[Progress]:
    """Progress bars with the time left and, of every task, the `unit`; nothing when the output is not a terminal."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[unit]}"),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
    )
    with Progress(*columns, console=out, transient=True, disable=not out.is_terminal) as progress:
        yield progress


class JobBars:
    """One bar for all runs of a comparison and one for each run under way; plain lines when not on a terminal."""

    def __init__(self, progress: Progress, jobs: Sequence[Job]) -> None:
        self.progress, self.jobs = progress, {job.path: job for job in jobs}
        self.parts: dict[Path, float] = {}
        self.bars: dict[Path, Any] = {}
        self.ended = 0
        self.total = progress.add_task("all runs", total=len(jobs), unit="runs")

    def notice(self, word: Notice) -> None:
        """A run under way says how far it is."""
        path, done, total = word
        if path not in self.bars and path in self.jobs:
            self.bars[path] = self.progress.add_task(escape(self.jobs[path].label), total=total, unit="batches")
        if path in self.bars:
            self.progress.update(self.bars[path], completed=done, total=total)
            self.parts[path] = done / max(total, 1)
            self.progress.update(self.total, completed=sum(self.parts.values()))

    def done(self, job: Job) -> None:
        """A run ended."""
        self.parts[job.path], self.ended = 1.0, self.ended + 1
        self.progress.update(self.total, completed=sum(self.parts.values()))
        if (bar := self.bars.pop(job.path, None)) is not None:
            self.progress.remove_task(bar)
        if not self.progress.console.is_terminal:
            self.progress.console.print(f"{self.ended}/{len(self.jobs)} {job.setting.task} · {job.label}")


def listing(names: Iterable[str]) -> str:
    """Names for a sentence or a table cell.

    >>> listing(["a", "b"])
    'a, b'
    """
    return ", ".join(names)
