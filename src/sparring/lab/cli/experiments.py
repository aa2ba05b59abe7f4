"""`sparring run`, `compare`, `sweep`, `evaluate`: train, and score what was trained."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from ..errors import LabError, unknown
from .answer import Answer
from .options import Board, Cores, DataDir, Device, Every, Out, Scale, Seeds, Sets, TaskName
from .parse import MAX_SEED, choose_device, data_folder, parse_methods, parse_seeds, parse_sets


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
    device: Device = "auto",
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

    choose_device(device)
    torch.set_num_threads(threads)
    entry = find(task)
    method = method or entry.baseline
    setting = entry.setting(method, scale, seed, data_folder(data), parse_sets(sets))
    path, screen = folder_of(out, setting), console()
    if not (path / "result.json").exists():
        look_first(entry, [setting])
    main_process = os.environ.get("RANK", "0") == "0"
    with bars(screen) as progress:
        bar = progress.add_task(f"{entry.name} · {method}", total=None, unit="batches")

        def watch(session: Any) -> None:
            progress.update(bar, completed=session.progress.step, total=session.total)

        result = execute(setting, path, command(), checkpoint_every, watch, tensorboard)
    if main_process:
        Answer.say(run=path, result=result)
        columns = {"validation": result["validation"], "test": result["test"]}
        screen.print(
            figures_table(f"{entry.name} ({scale}) · {method} · seed {seed}, epoch {result['best_epoch']}", columns)
        )
        screen.print(f"run folder: {escape(str(path))}")


def compare(
    task: TaskName,
    methods: Annotated[str | None, typer.Option(help="names with commas between; default all of the task")] = None,
    seeds: Seeds = "3",
    scale: Scale = "tiny",
    data: DataDir = None,
    out: Out = Path("runs"),
    sets: Sets = None,
    cores: Cores = None,
    device: Device = "auto",
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
    from .work import do_jobs, look_first, raise_first, write_report

    choose_device(device)
    entry = find(task)
    names = parse_methods(methods, entry)
    wanted = jobs(entry, names, parse_seeds(seeds), scale, out, data_folder(data), parse_sets(sets))
    if not all(finished(job) for job in wanted):
        look_first(entry, [job.setting for job in wanted])
    failures = do_jobs(wanted, cores, checkpoint_every, tensorboard)
    from .show import comparison_table, console

    runs = [read_run(job.path) for job in wanted if job not in failures]
    if runs:
        comparison = tabulate(runs, entry.baseline, names)
        Answer.say(comparison=comparison)
        console().print(comparison_table(comparison))
    if report and runs:
        write_report(out, out / "report.html")
    raise_first(failures)


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
    device: Device = "auto",
    storage: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="where trials are kept: default SQLite in OUT; journal:FILE on a shared disk; postgresql://...",
        ),
    ] = None,
    report: Annotated[bool, typer.Option(help="write OUT/report.html")] = True,
) -> None:
    """Search settings with Optuna and draw how sensitive the score is to each.

    The validation score decides; test figures are only reported. Stopped or killed, the same command goes on. Workers on one
    or several machines share a sweep: start the same command once per worker, across machines with `--storage`.

    Examples: `sparring sweep sequential-digits --method salt --param radius=0.1,0.3,1,3 --seeds 3`,
    `sparring sweep sst --method attention_at --param radius=1:30:log --param lr=1e-4:1e-2:log --trials 30`
    """
    from ..registry import task as find
    from ..sweep import Plan, parse_param, sweep_all
    from .show import console, table
    from .work import write_report

    choose_device(device)
    entry = find(task)
    ranges = dict(parse_param(text) for text in param)
    if len(ranges) < len(param):
        raise LabError("a name is given by --param twice; write one range or list for each")
    plan = Plan(entry, method, scale, parse_seeds(seeds), ranges, out, data_folder(data), parse_sets(sets), storage)
    done = sweep_all(plan, trials, cores)
    made = table(
        f"{entry.name} ({scale}) · {method}: best trials by validation {entry.score}", *ranges, "validation", "test"
    )
    Answer.say(sweep={"task": entry.name, "scale": scale, "method": method, "score": entry.score, "trials": done})
    for trial in done[:10]:
        made.add_row(*(str(trial.settings[name]) for name in ranges), f"{trial.value:.4g}", f"{trial.test:.4g}")
    console().print(made)
    if report:
        write_report(out, out / "report.html")


def evaluate(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="a run folder (it has config.json and state.json)")],
    data: DataDir = None,
    device: Device = "auto",
    split: Annotated[str, typer.Option(help="train, validation or test")] = "test",
    probe: Annotated[
        str | None, typer.Option(metavar="TASK", help="fit linear probes on its frozen features, over ten seeds")
    ] = None,
) -> None:
    """Score a finished run's weights again, on any split; or probe what its features know of another task.

    Examples: `sparring evaluate runs/sequential-digits/tiny/salt/seed-0 --split validation`,
    `sparring evaluate runs/sst-2/small/salt/seed-0 --probe rte`
    """
    from ..runs.load import score_run
    from .show import console, figures_table

    if split not in ("train", "validation", "test"):
        raise unknown("split", split, ("train", "validation", "test"))
    choose_device(device)
    if probe is not None:
        from ..probing import probe_run
        from ..statistics import mean, spread

        probed = probe_run(folder, probe, data_folder(data))
        Answer.say(run=folder, probe=probe, figures=probed)
        table = {name: {"mean": mean(values), "spread": spread(values) or 0.0} for name, values in probed.items()}
        columns = {part: {name: row[part] for name, row in table.items()} for part in ("mean", "spread")}
        console().print(figures_table(f"{folder}: ten linear probes on {probe}", columns))
        return
    figures = score_run(folder, split, data_folder(data))
    Answer.say(run=folder, split=split, figures=figures)
    console().print(figures_table(str(folder), {split: figures}))
