"""The command `sparring`: run, compare, sweep, look.

Imports beyond the core wait until a command needs them, so that `--help` answers soon.
"""

import os
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from ..errors import Interrupted, LabError, RunError, first_line, unknown
from .data import data_app
from .options import Board, Cores, DataDir, Every, Out, Scale, Seeds, Sets, TaskName
from .parse import MAX_SEED, data_folder, parse_methods, parse_seeds, parse_sets
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
    f"{EXIT_CODES}\n\nAdd `--debug` for the traceback of an error.",
    epilog="Runs can be stopped with Ctrl-C, killed and repeated: the same command goes on where it stopped.",
    rich_markup_mode="markdown",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(data_app, name="data")
app.add_typer(study_app, name="study")


@app.command("tasks")
def list_tasks(
    name: Annotated[str | None, typer.Argument(metavar="[TASK]", help="show one task in full")] = None,
) -> None:
    """List the tasks, or show one with its methods and settings.

    Examples: `sparring tasks`, `sparring tasks sequential-digits`
    """
    from ..registry import broken_plugins, task, tasks
    from .show import console, listing, table

    out = console()
    if name is None:
        made = table("tasks", "task", "what it is", "score", "scales", "methods", numbers=("methods",))
        for entry in tasks().values():
            made.add_row(entry.name, entry.summary, entry.score, listing(entry.scales), str(len(entry.methods)))
        out.print(made)
        for broken in broken_plugins().values():
            out.print(escape(f"left out: {broken}"))
        return
    entry = task(name)
    out.print(f"[bold]{entry.name}[/]: {escape(entry.summary)}\nscore: test {entry.score}, {entry.better} is better")
    if entry.paper:
        out.print(f"from: {escape(entry.paper)}")
    made = table("methods", "method", "what it does", "settings of its own")
    for method in entry.methods:
        own = listing(f"{key}={value}" for key, value in method.settings.items())
        made.add_row(method.name + (" (baseline)" if method.name == entry.baseline else ""), method.summary, own)
    out.print(made)
    for scale, values in entry.scales.items():
        out.print(f"[bold]{scale}[/]: {escape(listing(f'{key}={value}' for key, value in values.items()))}")


@app.command("methods")
def list_methods(
    name: Annotated[str | None, typer.Argument(metavar="[METHOD]", help="show the tasks of one method")] = None,
) -> None:
    """List the methods and the tasks that know them.

    Examples: `sparring methods`, `sparring methods salt`
    """
    from ..registry import tasks
    from .show import console, listing, table

    found: dict[str, tuple[str, list[str]]] = {}
    for task in tasks().values():
        for method in task.methods:
            found.setdefault(method.name, (method.summary, []))[1].append(task.name)
    if name is not None and name not in found:
        raise unknown("method", name, found)
    made = table("methods", "method", "what it does", "tasks")
    for method_name, (summary, homes) in found.items():
        if name in (None, method_name):
            made.add_row(method_name, summary, listing(homes))
    console().print(made)


@app.command()
def run(
    task: TaskName,
    method: Annotated[
        str | None, typer.Option(help="a method of the task, see `sparring tasks TASK`; default its baseline")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="decides initial weights, data order and noise")] = 0,
    scale: Scale = "tiny",
    data: DataDir = None,
    out: Out = Path("runs"),
    sets: Sets = None,
    threads: Annotated[int, typer.Option(min=1, help="threads torch may use")] = 1,
    checkpoint_every: Every = 30.0,
    tensorboard: Board = False,
) -> None:
    """Train one method on one task with one seed.

    Killed or stopped with Ctrl-C, the same command goes on to the very same weights. Works under `torchrun` and
    `accelerate launch`.

    Examples: `sparring run sequential-digits --method salt`,
    `sparring run smnist --method adversarial_dropout --scale small --data ~/data --set epochs=5`
    """
    import torch

    from ..registry import task as find
    from ..runs.environment import command
    from ..runs.folder import folder_of
    from ..runs.run import execute
    from .show import bars, console, figures_table
    from .work import look_first

    torch.set_num_threads(threads)
    entry = find(task)
    method = method or entry.baseline
    setting = entry.setting(method, scale, seed, data_folder(data), parse_sets(sets))
    path, screen = folder_of(out, setting), console()
    if not (path / "result.json").exists():
        look_first(entry, [setting])
    main_process = os.environ.get("RANK", "0") == "0"
    with bars(screen, "batches") as progress:
        bar = progress.add_task(f"{entry.name} · {method}", total=None)

        def watch(session: Any) -> None:
            progress.update(bar, completed=session.progress.step, total=session.total)

        result = execute(setting, path, command(), checkpoint_every, watch, tensorboard)
    if main_process:
        columns = {"validation": result["validation"], "test": result["test"]}
        screen.print(
            figures_table(f"{entry.name} ({scale}) · {method} · seed {seed}, epoch {result['best_epoch']}", columns)
        )
        screen.print(f"run folder: {escape(str(path))}")


@app.command()
def compare(
    task: TaskName,
    methods: Annotated[str | None, typer.Option(help="names with commas between; default all of the task")] = None,
    seeds: Seeds = "3",
    scale: Scale = "tiny",
    data: DataDir = None,
    out: Out = Path("runs"),
    sets: Sets = None,
    cores: Cores = None,
    checkpoint_every: Every = 30.0,
    tensorboard: Board = False,
    report: Annotated[bool, typer.Option(help="write OUT/report.html")] = True,
) -> None:
    """Train several methods on the same seeds and tell how they differ.

    Every method starts from the same weights and sees the same batches. The table shows the mean over the seeds, the
    spread (standard deviation), the paired difference to the baseline with its 95 % interval, and what a step costs in
    passes and CPU time relative to the baseline. Finished runs are not repeated.

    Examples: `sparring compare sequential-digits --methods plain,vat,salt --seeds 3`,
    `sparring compare sst --scale small --data ~/data --cores 4`
    """
    from ..compare import compare as tabulate
    from ..compare import jobs, read_run
    from ..pool import finished
    from ..registry import task as find
    from .work import do_jobs, look_first

    entry = find(task)
    names = parse_methods(methods, entry)
    wanted = jobs(entry, names, parse_seeds(seeds), scale, out, data_folder(data), parse_sets(sets))
    if not all(finished(job) for job in wanted):
        look_first(entry, [job.setting for job in wanted])
    failures = do_jobs(wanted, cores, checkpoint_every, tensorboard)
    from .show import comparison_table, console

    runs = [read_run(job.path) for job in wanted if job not in failures]
    if runs:
        console().print(comparison_table(tabulate(runs, entry.baseline, names)))
    if report and runs:
        write_report(out, out / "report.html")
    raise_first(failures)


def raise_first(failures: dict[Any, LabError]) -> None:
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
    from .show import console

    to = build(out, to / "report.html" if to.is_dir() else to, lambda text: print(f"sparring: {text}", file=sys.stderr))
    console().print(f"report: {escape(str(to))}")


@app.command()
def sweep(
    task: TaskName,
    method: Annotated[str, typer.Option(help="the method to tune")],
    param: Annotated[
        list[str],
        typer.Option(metavar="NAME=RANGE", help="0.1:10:log, 0.1:1, 1:8 (whole numbers) or a list 0.1,0.3,1"),
    ],
    trials: Annotated[
        int | None, typer.Option(min=1, help="trials in all; default every point of the lists, else 20")
    ] = None,
    seeds: Seeds = "1",
    scale: Scale = "tiny",
    data: DataDir = None,
    out: Out = Path("runs"),
    sets: Sets = None,
    cores: Cores = None,
    storage: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Optuna storage; default SQLite in OUT, a server's URL for many machines"),
    ] = None,
    report: Annotated[bool, typer.Option(help="write OUT/report.html")] = True,
) -> None:
    """Search settings with Optuna and draw how sensitive the score is to each.

    The validation score decides; test figures are only reported. Stopped or killed, the same command goes on; several
    machines can share a sweep through `--storage`.

    Examples: `sparring sweep sequential-digits --method salt --param radius=0.1,0.3,1,3 --seeds 3`,
    `sparring sweep sst --method attention_at --param radius=1:30:log --param lr=1e-4:1e-2:log --trials 30`
    """
    from ..registry import task as find
    from ..sweep import Plan, parse_param, sweep_all
    from .show import console, table

    entry = find(task)
    ranges = dict(parse_param(text) for text in param)
    if len(ranges) < len(param):
        raise LabError("a name is given by --param twice; write one range or list for each")
    plan = Plan(entry, method, scale, parse_seeds(seeds), ranges, out, data_folder(data), parse_sets(sets), storage)
    done = sweep_all(plan, trials, cores)
    made = table(
        f"{entry.name} ({scale}) · {method}: best trials by validation {entry.score}", *ranges, "validation", "test"
    )
    for trial in done[:10]:
        made.add_row(*(str(trial.settings[name]) for name in ranges), f"{trial.value:.4g}", f"{trial.test:.4g}")
    console().print(made)
    if report:
        write_report(out, out / "report.html")


@app.command()
def evaluate(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="a run folder (it has config.json and state.json)")],
    data: DataDir = None,
    split: Annotated[str, typer.Option(help="train, validation or test")] = "test",
) -> None:
    """Score a finished run's weights again, on any split.

    Example: `sparring evaluate runs/sequential-digits/tiny/salt/seed-0 --split validation`
    """
    from ..runs.load import score_run
    from .show import console, figures_table

    if split not in ("train", "validation", "test"):
        raise unknown("split", split, ("train", "validation", "test"))
    console().print(figures_table(str(folder), {split: score_run(folder, split, data_folder(data))}))


@app.command("report")
def make_report(
    out: Annotated[Path, typer.Argument(metavar="DIR", help="a folder with runs, as given to --out")] = Path("runs"),
    to: Annotated[Path | None, typer.Option(metavar="FILE", help="default DIR/report.html")] = None,
) -> None:
    """Write one self-contained HTML file about every finished run in a folder.

    Example: `sparring report runs --to report.html`
    """
    write_report(out, to or out / "report.html")


@app.command()
def demo(
    out: Out = Path("demo"),
    cores: Cores = None,
    seeds: Seeds = "3",
) -> None:
    """Compare the families on embedded data: recurrent masks, attention, ensembles. A few minutes on two cores.

    Example: `sparring demo --out demo`
    """
    from .work import do_demo

    failures = do_demo(out, cores, parse_seeds(seeds))
    write_report(out, out / "report.html")
    raise_first(failures)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code. Errors are one sentence, unless `--debug` is among the arguments."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given or bool(os.environ.get("SPARRING_DEBUG"))
    given = [argument for argument in given if argument != "--debug"]
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
    except BrokenPipeError:  # the reader of our output has left, as in `sparring tasks | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        show = getattr(error, "show", None)
        if show is not None and hasattr(error, "exit_code"):  # wrong usage, explained by typer
            show()
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
    print(f"sparring: {sentence}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
