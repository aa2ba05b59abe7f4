"""`sparring study`: claims with their experiments."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from .answer import Answer
from .options import Cores, DataDir
from .parse import data_folder

study_app = typer.Typer(
    help="Claims of the papers with the experiments that test them: what is known, run what is missing, look.",
    no_args_is_help=True,
)
Name = Annotated[str, typer.Argument(metavar="NAME", help="a name from `sparring study list`, or a file ./mine.py")]
Records = Annotated[
    Path | None,
    typer.Option(
        "--records", metavar="DIR", help="where records are; default studies/ of this checkout, or of this folder"
    ),
]


def records_folder(given: Path | None) -> Path:
    """`--records`, else `studies/` of the nearest folder above that has a pyproject.toml, else of the present one."""
    if given is not None:
        return given
    here = Path.cwd()
    return next((up / "studies" for up in (here, *here.parents) if (up / "pyproject.toml").exists()), here / "studies")


@study_app.command("list")
def list_studies(records: Records = None) -> None:
    """Every claim with its verdict and the number of runs that are recorded.

    Example: `sparring study list`
    """
    from ..studies.library import studies
    from ..studies.results import results
    from .show import console, number, table

    made = table("studies", "study", "claim", "runs", "CPU hours left", "verdict", numbers=("CPU hours left",))
    for study in studies().values():
        found = results(study, records_folder(records))
        Answer.say(
            **{study.name: {"claim": study.claim, "done": found.done, "of": found.total, "verdict": found.verdict}}
        )
        left = number(found.hours_left, 2)
        made.add_row(study.name, escape(study.claim), f"{found.done} of {found.total}", left, found.verdict)
    console().print(made)


@study_app.command("run")
def run(
    name: Name,
    records: Records = None,
    data: DataDir = None,
    cores: Cores = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="run folders live here until they are recorded")] = Path(
        "runs/studies"
    ),
    limit: Annotated[int | None, typer.Option(min=1, help="begin no more than so many runs")] = None,
    minutes: Annotated[float | None, typer.Option(min=0, help="begin no run after so many minutes")] = None,
    arms: Annotated[
        str | None, typer.Option(help="only these arms, with commas between: others may do the rest")
    ] = None,
) -> None:
    """Do the runs of a study that are not recorded yet: tuning first, then evaluation with the values it chose.

    Every run that ends is appended to the records at once. Killed or stopped, the same command goes on, on this machine
    or on another that has the records.

    Examples: `sparring study run few-labels --data ~/data`, `sparring study run ./mine.py --minutes 30`
    """
    from ..runs.environment import command
    from ..studies.library import study as find
    from ..studies.run import run_study
    from .show import console
    from .work import usable_cores

    screen = console()
    for study in find(name):
        left = run_study(
            study,
            records_folder(records),
            out,
            cores or usable_cores(),
            data_folder(data),
            limit,
            minutes,
            command(),
            lambda line: screen.print(escape(line)),
            None if arms is None else [name.strip() for name in arms.split(",")],
        )
        Answer.say(**{study.name: {"left": left}})
        screen.print(f"{study.name}: " + (f"{left} runs are still to be done" if left else "complete"))


@study_app.command("show")
def show(
    name: Name,
    records: Records = None,
    to: Annotated[
        Path | None, typer.Option(metavar="FILE", help="the figure; default NAME.svg beside the records")
    ] = None,
) -> None:
    """The table of a study, its verdict, and a figure with intervals.

    Example: `sparring study show few-labels`
    """
    from ..runs.files import write_atomic
    from ..studies.figure import figure
    from ..studies.library import study as find
    from ..studies.results import results
    from .show import console

    screen, folder = console(), records_folder(records)
    for study in find(name):
        found = results(study, folder)
        screen.print(f"[bold]{escape(study.claim)}[/] ({escape(study.source)})")
        Answer.say(**{study.name: told(found)})
        screen.print(study_table(found))
        screen.print(escape(found.sentence))
        if found.done:
            path = to or folder / f"{study.name}.svg"
            write_atomic(path, figure(found).encode())
            screen.print(f"figure: {escape(str(path))}")


@study_app.command("docs")
def docs(
    records: Records = None,
    to: Annotated[Path, typer.Option(metavar="DIR", help="the folder of the documentation")] = Path("docs"),
) -> None:
    """Write the page of claims and its figures from the records.

    Example: `sparring study docs`
    """
    from ..studies.page import write_page
    from .show import console

    page = write_page(records_folder(records), to)
    Answer.say(page=page)
    console().print(f"page: {page}")


def told(found: Any) -> dict[str, Any]:
    """The `Results` of a study, for programs."""
    rows = [
        {
            "arm": row.arm.name,
            "chosen": row.trial,
            "values": row.values,
            "mean": row.mean,
            "spread": row.spread,
            "to_baseline": row.to_baseline,
            "to_control": row.to_control,
            "passes": row.passes,
            "seconds": row.seconds,
        }
        for row in found.rows
    ]
    return {"claim": found.study.claim, "verdict": found.verdict, "sentence": found.sentence, "rows": rows}


def gap(difference: Any) -> str:
    """A paired difference with its 95 % interval."""
    if difference is None:
        return "-"
    text = f"{difference.mean:+.3g}"
    if difference.interval is not None:
        text += f" [{difference.interval[0]:+.3g}, {difference.interval[1]:+.3g}]"
    return text


def study_table(found: Any) -> Any:
    """The `Results` of a study, one line for every arm."""
    from .show import number, table

    study = found.study
    made = table(
        f"{study.name}: test {study.metric}, {study.better} is better; {found.done} of {found.total} runs",
        "arm",
        "chosen",
        study.metric,
        "spread",
        f"to {study.baseline} [95 %]",
        "to control [95 %]",
        "seeds",
        "passes",
        "seconds",
        numbers=(study.metric, "spread", "seeds", "passes", "seconds"),
    )
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
