"""`sparring data`: which data sets there are, which are here, and how to get the others."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from .answer import Answer

data_app = typer.Typer(
    help="Find or download the real data sets.\n\n"
    "Files are read where they lie (`.gz`, `.xz`, `.bz2`, `.tar` included), from `--data DIR`, `$SPARRING_DATA` or the "
    "user's cache.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
Where = Annotated[
    Path | None, typer.Option("--data", metavar="DIR", help="the data folder; default $SPARRING_DATA, else the cache")
]


@data_app.command("list")
def list_sets(data: Where = None) -> None:
    """List the data sets and whether their files are here.

    Example: `sparring data list --data ~/data`
    """
    from .. import data as shelf
    from .show import console, table

    made = table("data sets", "name", "what it is", "here", "terms")
    folder, told = None, {}
    for entry in shelf.list():
        place = shelf.locate(entry.name, data)
        folder = place.folder
        here = "yes" if place.complete else "in part" if len(place.missing) < len(place.found) else "no"
        made.add_row(entry.name, escape(entry.title), here, escape(entry.terms + "; unverified" * (not entry.verified)))
        told[entry.name] = {"title": entry.title, "here": here, "terms": entry.terms}
    Answer.say(data=told, folder=folder)
    console().print(made)
    console().print(escape(f"data folder: {folder}"))


@data_app.command("where")
def where(name: Annotated[str, typer.Argument(help="a name from `sparring data list`")], data: Where = None) -> None:
    """Say where each file of a data set lies or should be put.

    Example: `sparring data where mnist`
    """
    from .. import data as shelf
    from .show import console, table

    place = shelf.locate(name, data)
    made = table(f"{name} in {place.folder}", "file", "found")
    Answer.say(folder=place.folder, files={file: found.path if found else None for file, found in place.found.items()})
    for file, found in place.found.items():
        made.add_row(escape(file), escape(str(found.path)) if found else "missing")
    console().print(made)
    if not place.complete and place.dataset.manual:
        console().print(escape(place.dataset.manual))


@data_app.command("get")
def get(
    name: Annotated[str, typer.Argument(help="a name from `sparring data list`")],
    data: Where = None,
    unverified: Annotated[
        bool, typer.Option("--unverified", help="take files whose SHA-256 nobody publishes, without asking")
    ] = False,
) -> None:
    """Download a data set, with resume and SHA-256.

    Where no SHA-256 is published the set is unverified, and the command asks first.

    Example: `sparring data get mnist --data ~/data`
    """
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    from .. import data as shelf
    from .show import console

    screen = console()
    place = shelf.locate(name, data)
    if not place.complete and not place.dataset.verified and not unverified and sys.stdin.isatty() and not Answer.json:
        question = f"No SHA-256 is published for {name}: nobody can tell whether what arrives is the real data. Go on?"
        unverified = typer.confirm(question, err=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=screen, disable=not screen.is_terminal) as progress:
        bars: dict[str, Any] = {}

        def report(file: str, done: int, total: int | None) -> None:
            if file not in bars:
                bars[file] = progress.add_task(file, total=total)
            progress.update(bars[file], completed=done, total=total)

        files = shelf.get(name, data, report, unverified)
    Answer.say(files=list(files))
    for file in files:
        screen.print(escape(str(file)))
