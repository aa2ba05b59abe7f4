"""Where the trials of a sweep are kept: SQLite, a journal file, or a database server."""

import fcntl
import os
import time
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import BaseStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalStorage
from sqlalchemy.pool import NullPool

from ..errors import RunError, first_line
from .plan import Plan

ATTEMPTS = 6  # workers that start in the same instant may all try to make the tables; one of them succeeds


class JournalLock:
    """Holds a journal for one writer; dies with its process, and removes the half line that a killed writer left.

    Optuna's own locks stay behind when their process is killed, and a half line in the middle makes the file unreadable.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "sweep.journal"
    >>> _ = path.write_bytes(b'{"a":1}\\n{"b":')
    >>> lock = JournalLock(path)
    >>> _ = lock.acquire(); lock.release()
    >>> path.read_bytes()
    b'{"a":1}\\n'
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.held: Any = None

    def acquire(self) -> bool:
        """Wait for the lock."""
        self.held = open(f"{self.path}.lock", "ab")  # noqa: SIM115 - held until `release`
        fcntl.flock(self.held, fcntl.LOCK_EX)
        with open(self.path, "rb+") as file:
            end = file.seek(0, os.SEEK_END)
            tail = b""
            while end and not tail.endswith(b"\n"):
                start = max(0, end - 4096)
                file.seek(start)
                tail = file.read(end - start)
                end = start + tail.rfind(b"\n") + 1
                tail = tail[: end - start]
                if start == 0:
                    break
            file.truncate(end)
        return True

    def release(self) -> None:
        """Let the next writer in."""
        self.held.close()


def open_storage(url: str | None, out: Path) -> BaseStorage:
    """The storage behind `--storage`: None is SQLite in `out`, `journal:PATH` a journal file, else a database URL."""
    if url is not None and url.startswith("journal:"):
        path = Path(url.removeprefix("journal:")).expanduser()
        path.parent.mkdir(parents=True, exist_ok=True)
        return JournalStorage(JournalFileBackend(str(path), lock_obj=JournalLock(path)))  # type: ignore[arg-type]
    url = url or f"sqlite:///{out / 'sweep.db'}"
    options: dict[str, Any] = {"poolclass": NullPool}  # trials take minutes: no connection is kept, so none goes stale
    if url.startswith("sqlite"):
        options["connect_args"] = {"timeout": 60}
    return RDBStorage(url, engine_kwargs=options)


def study_of(plan: Plan) -> optuna.Study:
    """The study of a plan, as it was left."""
    try:
        plan.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot write to {plan.out}: {error.strerror}; choose another --out") from error
    for attempt in range(ATTEMPTS):
        try:
            return optuna.create_study(
                storage=open_storage(plan.storage, plan.out),
                study_name=plan.name,
                direction="maximize" if plan.task.better == "higher" else "minimize",
                load_if_exists=True,
            )
        except Exception as error:  # whatever database driver the URL asked for
            if attempt == ATTEMPTS - 1 or isinstance(error, (ImportError, ValueError)):
                where = plan.storage or plan.out / "sweep.db"
                raise RunError(f"cannot open the sweep's storage {where}: {first_line(error)}") from error
            time.sleep(0.1 * 2**attempt)
    raise AssertionError("unreachable")
