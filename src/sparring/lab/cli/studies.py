"""The table of a study on the screen."""

from rich.markup import escape
from rich.table import Table

from ..statistics import Difference
from ..studies.results import Results
from .show import number, table


def gap(difference: Difference | None) -> str:
    """A paired difference with its 95 % interval."""
    if difference is None:
        return "-"
    text = f"{difference.mean:+.3g}"
    if difference.interval is not None:
        text += f" [{difference.interval[0]:+.3g}, {difference.interval[1]:+.3g}]"
    return text


def study_table(found: Results) -> Table:
    """One line for every arm."""
    study = found.study
    made = table(
        f"{study.name}: test {study.metric}, {study.better} is better; {found.done} of {found.total} runs",
        "arm", "chosen", study.metric, "spread", f"to {study.baseline} [95 %]", "to control [95 %]", "seeds", "passes", "seconds",
        numbers=(study.metric, "spread", "seeds", "passes", "seconds"),
    )  # fmt: skip
    for row in found.rows:
        chosen = "being tuned" if row.trial is None else ", ".join(f"{k}={v}" for k, v in row.trial.items())
        made.add_row(
            row.arm.name,
            chosen,
            number(row.mean),
            number(row.spread, 3),
            escape(gap(row.to_baseline)),
            escape(gap(row.to_control)),
            str(len(row.values)),
            number(row.passes, 3),
            number(row.seconds, 3),
        )
    return made
