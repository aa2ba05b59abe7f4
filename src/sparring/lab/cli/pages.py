"""`sparring report` and `sparring demo`: look at the result."""

from pathlib import Path
from typing import Annotated

import typer

from .options import Cores, Out, Seeds
from .parse import parse_seeds


def make_report(
    out: Annotated[Path, typer.Argument(metavar="DIR", help="a folder with runs, as given to --out")] = Path("runs"),
    to: Annotated[Path | None, typer.Option(metavar="FILE", help="default DIR/report.html")] = None,
) -> None:
    """Write one self-contained HTML file about every finished run in a folder.

    Example: `sparring report runs --to report.html`
    """
    from .work import write_report

    write_report(out, to or out / "report.html")


def demo(
    out: Out = Path("demo"),
    cores: Cores = None,
    seeds: Seeds = "5",
) -> None:
    """Is it worth it? Each family scored on what it claims, on embedded data: a few minutes on two cores.

    Example: `sparring demo --out demo`
    """
    from .demonstration import do_demo
    from .work import raise_first, write_report

    failures = do_demo(out, cores, parse_seeds(seeds))
    write_report(out, out / "report.html")
    raise_first(failures)
