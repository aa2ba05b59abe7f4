"""Do one run, or the rest of it: `execute`."""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import median
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import Tensor, nn

from ..data import DataError
from ..data.files import folder_of as folder_of_data
from ..data.fingerprint import fingerprint, noted
from ..errors import Interrupted, LabError, RunError, first_line
from ..registry import task_of
from ..source import blamed_on
from ..task import Data, Setting, Task
from ..training.devices import brought, on_processor
from ..training.train import Session, keep_best, score, train, undisturbed
from . import checkpoint
from .files import locked, log, read_json, write_json
from .folder import Folder, check_finished_data, finished, folder_of, read_metrics, root_of
from .needed import bring_helpers
from .shapes import RESULT

Watch = Callable[[Session], None]


def start_equal(task: Task, setting: Setting, data: Data) -> nn.Module:
    """The method's model under the run's seed, with the baseline's initial values wherever name and shape agree."""
    set_seed(setting.seed)
    model = task.build(setting, data)
    if setting.method == task.baseline:
        return model
    known = task.setting(task.baseline, setting.scale).values
    changes = {name: value for name, value in setting.overrides.items() if name in known}
    base = task.setting(task.baseline, setting.scale, setting.seed, setting.data, changes)
    set_seed(setting.seed)
    theirs, mine = task.build(base, data).state_dict(), model.state_dict()
    common = {name for name in mine if name in theirs and theirs[name].shape == mine[name].shape}
    model.load_state_dict({name: theirs[name] if name in common else mine[name] for name in mine})
    return model


def prepare(
    setting: Setting, accelerator: Accelerator | None = None, start: Mapping[str, Tensor] | None = None
) -> Session:
    """Data, model, objective and optimiser of a run, before its first step.

    Args:
        setting: what to run.
        accelerator: this process's place among the others.
        start: weights of the stage that the run starts from.
    """
    task = task_of(setting)
    accelerator = accelerator or accelerate(setting)
    set_seed(setting.seed)
    data = brought(task.load(setting), accelerator.device)
    model = start_equal(task, setting, data).to(accelerator.device)
    started = start is not None and task.stage is not None and task.stage.adopt(model, start, setting)
    method = task.method(setting.method)
    set_seed(setting.seed, device_specific=True)
    objective = method.objective(model, setting, data) if method.objective else None
    return Session(task, setting, data, model, objective, accelerator, started=started)


def accelerate(setting: Setting) -> Accelerator:
    """The process's place among the others, as `torchrun` or `accelerate launch` set it up; alone otherwise."""
    return Accelerator(cpu=on_processor(), gradient_accumulation_steps=setting["accumulate"])


@contextmanager
def blamed_on_changes(setting: Setting, begun: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """A run that cannot be set up or take its first step with what the user changed is the user's to put right.

    Args:
        setting: what to run.
        begun: whether a step was taken; from then on only a `ValueError` can be about the settings.
    """
    try:
        yield
    except DataError:
        raise
    except (ValueError, RuntimeError) as error:
        if not setting.overrides or (begun() and not isinstance(error, ValueError)):
            raise
        changes = ", ".join(f"{name}={value}" for name, value in setting.overrides.items())
        raise LabError(f"{setting.task} cannot be run with {changes}: {first_line(error)}") from error


def finish(session: Session, folder: Folder) -> dict[str, Any]:
    """Score the best epoch's weights on the test split; save everything, then say finished.

    `result.json` comes after the checkpoint and the figures and names the weights it is about. What follows it only
    makes room. A kill anywhere in between goes on from the checkpoint and ends in the same files.
    """
    if not session.best_weights:
        keep_best(session, score(session, "validation"))
    folder.save(session)
    session.model.load_state_dict(session.best_weights)
    bring_helpers(session, folder.path)
    task, epochs = session.task, read_metrics(folder.path) if folder.main else []
    result: dict[str, Any] = {
        "task": task.name,
        "summary": task.summary,
        "baseline": task.baseline,
        "score": task.score,
        "better": task.better,
        "epochs": session.progress.epoch,
        "best_epoch": session.progress.best_epoch,
        "test": score(session, "test"),
        "validation": score(session, "validation"),
        "seconds_per_step": median(line["seconds_per_step"] for line in epochs) if epochs else 0.0,
        "passes_per_step": median(line["passes_per_step"] for line in epochs) if epochs else 0.0,
        "parameters": sum(p.numel() for p in session.model.parameters()),
    }
    if folder.main:
        with undisturbed(session.model):
            figures = task.figures(session.model, session.data, session.setting)
        write_json(folder.path / "figures.json", {"figures": figures})
        result["weights"] = checkpoint.index_of(folder.path / checkpoint.NEWEST)["best"]["sha256"]
        write_json(folder.path / "result.json", result)
        tidy(folder.path)
    return result


def tidy(path: Path) -> None:
    """Make room: a finished run needs its best weights, not the optimiser's state nor an older checkpoint."""
    index = checkpoint.index_of(path / checkpoint.NEWEST)
    if set(index) != {"best"} or (path / checkpoint.OLDER).exists():
        checkpoint.keep_only(path, "best")
    else:
        checkpoint.clear(path)


def reopened(path: Path, setting: Setting) -> dict[str, Any] | None:
    """The result of a finished run, checked; None (and no `result.json`) where something is left to do."""
    if not (path / "result.json").exists():
        return None
    result = finished(path)
    if result is None:
        log.warning("%s says finished, but not all of its files are good; what is missing is done again", path)
        checkpoint.forget_weights(path)
        (path / "result.json").unlink()
        return None
    check_finished_data(path, setting)
    tidy(path)
    return result


def stage_weights(
    setting: Setting, path: Path, command: str, checkpoint_every: float, watch: Watch, stop: threading.Event
) -> Mapping[str, Tensor] | None:
    """What the run's stage learnt; done first where it is not there yet, waited for where another process is at it."""
    stage = task_of(setting).stage
    first = stage.run(setting) if stage else None
    if first is None:
        return None
    folder = folder_of(root_of(path, setting), first)

    def wait() -> None:
        if stop.is_set():
            raise Interrupted(f"stopped while another process works on {folder}; the same command goes on from there")
        time.sleep(0.2)

    execute(first, folder, command, checkpoint_every, watch, wait=wait)
    parts = checkpoint.load(folder)
    if not parts or not parts.get("best"):
        raise RunError(f"{folder} is finished but holds no weights; delete it to do this stage again")
    weights: Mapping[str, Tensor] = parts["best"]
    return weights


def execute(
    setting: Setting,
    path: Path,
    command: str = "",
    checkpoint_every: float = 30.0,
    watch: Watch = lambda session: None,
    tensorboard: bool = False,
    wait: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """Do a run, or the rest of it; returns its result. A finished run is read, not repeated.

    The stage that a run starts from is done first, in a folder of its own.

    Args:
        setting: what to run.
        path: the run's folder.
        command: what was typed, for the record.
        checkpoint_every: seconds between checkpoints; 0 takes one after every update.
        watch: called after every batch.
        tensorboard: also write TensorBoard event files into the folder.
        wait: called again and again while another process works on this run; without it that is an error.
    """
    accelerator = accelerate(setting)
    main = accelerator.is_main_process
    with locked(path, wait) if main else nullcontext(), stop_signals() as stop, blamed_on(setting.source):
        folder = Folder(path, setting, main)
        folder.open(command)
        done = reopened(path, setting) if main else None
        accelerator.wait_for_everyone()
        if (path / "result.json").exists():
            return done or read_json(path / "result.json", RESULT)
        begun = checkpoint.resumable(path)  # what a stage learnt is in there already
        start = None if begun else stage_weights(setting, path, command, checkpoint_every, watch, stop)
        with blamed_on_changes(setting), noted() as files:
            session = prepare(setting, accelerator, start)
        folder.check_data(fingerprint(files, folder_of_data(setting.data)))
        accelerator.wait_for_everyone()
        folder.check_environment()
        if main and session.data.record:
            write_json(path / "data.json", session.data.record)
        folder.restore(session)
        write_events = events(path) if tensorboard and main else lambda record: None

        def after_batch() -> None:
            watch(session)
            if not session.settled:
                return
            asked, due = agreed(accelerator, stop.is_set(), time.monotonic() - folder.saved >= checkpoint_every)
            if asked or due:
                folder.save(session)
            if asked:
                p = session.progress
                raise Interrupted(
                    f"stopped at epoch {p.epoch + 1}, batch {p.batch}; the same command goes on from there"
                )

        def after_epoch(record: dict[str, Any]) -> None:
            with undisturbed(session.model):
                record["probe"] = session.task.probe(session.model, session.data, setting)
            if main:
                folder.append(record)
            write_events(record)

        with blamed_on_changes(setting, lambda: session.progress.step > 0):
            train(session, after_batch, after_epoch)
        return finish(session, folder)


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """The first Ctrl-C or SIGTERM sets the event (the loop then saves and leaves); a second Ctrl-C cuts in at once."""
    stop = threading.Event()
    before: dict[int, Any] = {}

    def ask(number: int, frame: Any) -> None:
        stop.set()
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        elif getattr(before[number], "shared", False):  # a pool's worker begins no other run either
            before[number](number, frame)

    if threading.current_thread() is threading.main_thread():
        heard = [n for n in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(n) is not signal.SIG_IGN]
        before = {number: signal.signal(number, ask) for number in heard}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def agreed(accelerator: Accelerator, *wishes: bool) -> list[bool]:
    """Each wish if any process has it, so that all of them act on the same batch."""
    if accelerator.num_processes == 1:
        return list(wishes)
    asked = accelerator.reduce(torch.tensor([float(wish) for wish in wishes], device=accelerator.device), "sum")
    return [bool(value) for value in asked]


def events(path: Path) -> Callable[[dict[str, Any]], None]:
    """Writes an epoch's record as TensorBoard events into the run folder."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(path / "tensorboard"))

    def write(record: dict[str, Any]) -> None:
        for group in ("validation", "diagnostics"):
            for name, value in record[group].items():
                writer.add_scalar(f"{group}/{name}", value, record["step"])
        writer.add_scalar("loss", record["loss"], record["step"])
        writer.flush()

    return write
