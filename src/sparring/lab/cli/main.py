"""The command `sparring`: run, compare, sweep, look.

Imports beyond the core wait until a command needs them, so that `--help` answers soon.
"""

import os
import platform
import sys
import traceback
from typing import Annotated

import typer

from ..errors import Interrupted, LabError, RunError, first_line
from . import experiments, lists, pages
from .answer import Answer
from .data import data_app
from .study import study_app

EXIT_CODES = """
Exit codes: 0 done; 1 a fault of sparring itself; 2 a wrong name, value or combination; 3 data missing or damaged;
4 a run folder locked, unreadable or full; 5 training diverged; 130 interrupted (the same command goes on).
"""

app = typer.Typer(
    name="sparring",
    help="Train models against a sparring partner: run a method on a task, compare methods fairly, look at the result."
    "\n\n**First steps**\n\n"
    "`sparring tasks` what there is to try\n\n"
    "`sparring run sequential-digits --method salt` one method, one seed\n\n"
    "`sparring compare sequential-digits --methods plain,vat,salt --seeds 3` a fair comparison and a report\n\n"
    "`sparring compare text --set train=reviews.csv --methods plain,vat` the same on a file of yours\n\n"
    f"{EXIT_CODES}\n\nAdd `--json` to any command for its result as JSON on standard output (all else goes to standard "
    "error), `--debug` for the traceback of an error.",
    epilog="Runs can be stopped with Ctrl-C, killed and repeated: the same command goes on where it stopped.",
    rich_markup_mode="markdown",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(data_app, name="data")
app.add_typer(study_app, name="study")


def show_version(wanted: bool) -> None:
    """`sparring --version`."""
    if wanted:
        import torch

        from ... import __version__

        Answer.say(version=__version__, torch=torch.__version__, python=platform.python_version())
        if not Answer.json:
            print(f"sparring {__version__} (torch {torch.__version__}, Python {platform.python_version()})")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", callback=show_version, is_eager=True, help="say which")] = False,
) -> None:
    """What stands before a command."""


app.command("tasks")(lists.list_tasks)
app.command("methods")(lists.list_methods)
app.command("run")(experiments.run)
app.command("compare")(experiments.compare)
app.command("sweep")(experiments.sweep)
app.command("evaluate")(experiments.evaluate)
app.command("report")(pages.make_report)
app.command("demo")(pages.demo)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code. Errors are one sentence, unless `--debug` is among the arguments.

    `--debug` and `--json` may stand anywhere.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given or bool(os.environ.get("SPARRING_DEBUG"))
    Answer.begin("--json" in given)
    given = [argument for argument in given if argument not in ("--debug", "--json")]
    try:
        code = perform(given, debug)
        Answer.end(code)
    except BrokenPipeError:  # the reader of our output has left, as in `sparring tasks | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


def perform(given: list[str], debug: bool) -> int:
    """Do what the arguments say; every error becomes a sentence and an exit code."""
    try:
        code = app(given, prog_name="sparring", standalone_mode=False) or 0
        if code == Interrupted.exit_code:  # how typer says that it met Ctrl-C outside of training
            raise KeyboardInterrupt
        return code
    except (KeyboardInterrupt, typer.Abort):
        return complain("stopped; the same command goes on from the last checkpoint", Interrupted.exit_code, debug)
    except typer.Exit as leaving:
        return leaving.exit_code
    except LabError as error:
        return complain(str(error), error.exit_code, debug)
    except BrokenPipeError:
        raise
    except Exception as error:
        show = getattr(error, "show", None)
        if show is not None and hasattr(error, "exit_code"):  # wrong usage, explained by typer
            show()
            Answer.say(error=str(getattr(error, "message", error)))
            return int(error.exit_code)
        return complain(*explain(error), debug)


def explain(error: Exception) -> tuple[str, int]:
    """The sentence and the exit code of an exception that is not the lab's own."""
    from ..data import DataError

    if isinstance(error, DataError):
        return str(error), error.exit_code
    if isinstance(error, OSError):
        return f"{error.filename or 'a file'}: {error.strerror or error}", RunError.exit_code
    return f"{type(error).__name__}: {first_line(error)} (this is a fault of sparring; --debug shows where)", 1


def complain(sentence: str, code: int, debug: bool) -> int:
    """One sentence on standard error."""
    if debug:
        traceback.print_exc()
    Answer.say(error=sentence)
    print(f"sparring: {sentence}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
