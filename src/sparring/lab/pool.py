"""Several runs at once: one process per core, one thread each, with word from every one of them."""

import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import Interrupted, LabError, RunError, first_line
from .runs import folder
from .task import Setting

PROCESSES = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Job:
    """One run to do."""

    setting: Setting = field(compare=False)
    path: Path
    note: str = field(default="", compare=False)  # what sets it apart from other runs of its method and seed

    @property
    def label(self) -> str:
        """How progress bars call it."""
        return " · ".join(filter(None, (self.setting.method, self.note, f"seed {self.setting.seed}")))


@dataclass(frozen=True)
class Orders:
    """What all jobs of a pool share."""

    command: str = ""
    checkpoint_every: float = 30.0
    tensorboard: bool = False
    patience: float = 30.0  # seconds to wait for a process that writes a job's folder, as workers of a killed parent do


Notice = tuple[Path, int, int]  # run folder, batches done, batches in all


@dataclass(frozen=True)
class Failure:
    """Why a job failed, in a form that travels between processes."""

    message: str
    exit_code: int
    traceback: str = ""

    def error(self) -> LabError:
        """The exception to raise in the process that asked."""
        error = Interrupted(self.message) if self.exit_code == Interrupted.exit_code else LabError(self.message)
        error.exit_code = self.exit_code
        if self.traceback:
            error.add_note(self.traceback)
        return error


class Worker:
    """The state of a worker process."""

    notices: Any = None
    stopping = False


def enter(notices: Any, threads: int) -> None:
    """Make a worker: one thread, deaf to Ctrl-C (the parent passes it on as SIGTERM), gone when its parent is gone."""
    import torch

    from .training.memory import keep_memory

    keep_memory()
    torch.set_num_threads(threads)
    Worker.notices = notices
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, begin_nothing)
    threading.Thread(target=follow_parent, daemon=True).start()


def begin_nothing(number: int, frame: Any) -> None:
    """A worker that is told to stop saves the run it is at and begins no other."""
    Worker.stopping = True


begin_nothing.shared = True  # type: ignore[attr-defined]  # `stop_signals` calls it besides its own handler


def follow_parent(grace: float = 20.0) -> None:
    """Save and leave when the parent has died, so that no orphan holds a run's lock."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(grace)
        os._exit(Interrupted.exit_code)


def work(job: Job, orders: Orders) -> Failure | None:
    """Do one job in this process, telling the parent how far it is."""
    from .data import DataError
    from .runs.run import execute

    last = 0.0

    def watch(session: Any) -> None:
        nonlocal last
        if Worker.notices is not None and time.monotonic() - last > 0.2:
            last = time.monotonic()
            Worker.notices.put((job.path, session.progress.step, session.total))

    deadline = time.monotonic() + orders.patience

    def wait() -> None:
        if Worker.stopping:
            raise Interrupted(f"stopped while another process is writing {job.path}")
        if time.monotonic() > deadline:
            raise RunError(f"another process is writing {job.path}; wait for it or choose another --out")
        time.sleep(0.1)

    if Worker.stopping:
        return Failure("stopped", Interrupted.exit_code)
    try:
        execute(job.setting, job.path, orders.command, orders.checkpoint_every, watch, orders.tensorboard, wait)
    except LabError as error:
        return Failure(str(error), error.exit_code)
    except DataError as error:
        return Failure(str(error), error.exit_code)
    except Exception as error:
        return Failure(f"{type(error).__name__}: {first_line(error)}", 1, traceback.format_exc())
    return None


def finished(job: Job) -> bool:
    """Whether a run has nothing left to do; one that was trained on other data than the job's is refused."""
    if folder.finished(job.path) is None:
        return False
    folder.check_finished_data(job.path, job.setting)
    return True


def execute_all(
    jobs: Iterable[Job | None],
    cores: int,
    orders: Orders,
    notice: Callable[[Notice], None] = lambda notice: None,
    done: Callable[[Job], None] = lambda job: None,
) -> dict[Job, LabError]:
    """Do every job, `cores` at a time. A job that fails does not stop the others; the failures are returned.

    Args:
        jobs: what to do, asked for one by one as cores fall free; finished ones are counted and skipped. None means that
            nothing can be begun until one of those under way has ended.
        cores: processes at once, each with one thread.
        orders: what they share.
        notice: called in this process, some times a second per job, with how far it is.
        done: called as each job ends.
    """
    failures: dict[Job, LabError] = {}
    source, running = iter(jobs), dict[Future[Failure | None], Job]()
    notices = PROCESSES.SimpleQueue()
    reader = threading.Thread(target=relay, args=(notices, notice), daemon=True)
    reader.start()
    before = {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    os.environ.update(dict.fromkeys(before, "1"))
    pool = ProcessPoolExecutor(cores, PROCESSES, enter, (notices, 1))
    try:
        while True:
            while len(running) < cores and (job := next(source, None)) is not None:
                if finished(job):
                    done(job)
                else:
                    with deaf_children():
                        running[pool.submit(work, job, orders)] = job
            if not running:
                break
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                job = running.pop(future)
                failure = future.result()
                if failure and failure.exit_code == Interrupted.exit_code:
                    raise failure.error()
                if failure:
                    failures[job] = failure.error()
                done(job)
    except BrokenProcessPool as error:
        raise RunError("a worker process was killed (out of memory?); the same command goes on from there") from error
    except (KeyboardInterrupt, Interrupted):
        stop(pool, running)
        raise Interrupted("stopped; finished runs are kept and the same command goes on with the others") from None
    finally:
        pool.shutdown(cancel_futures=True)
        notices.put(None)
        reader.join(timeout=5)
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
    return failures


@contextmanager
def deaf_children() -> Iterator[None]:
    """Processes started inside do not hear Ctrl-C, from their first instant: the parent tells them when to stop."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def stop(pool: ProcessPoolExecutor, running: dict[Future[Failure | None], Job]) -> None:
    """Cancel what has not begun and let every worker save its state."""
    for future in running:
        future.cancel()
    for process in (getattr(pool, "_processes", None) or {}).values():
        if process.is_alive():
            os.kill(process.pid, signal.SIGTERM)


def relay(notices: Any, notice: Callable[[Notice], None]) -> None:
    """Hand the workers' notices on until the end is announced."""
    while (word := notices.get()) is not None:
        notice(word)
