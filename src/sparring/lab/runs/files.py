"""Files that are either the old ones or the new ones, never half of each, and that can tell when they are damaged.

Every JSON file carries a `seal`, the SHA-256 over its values: a changed digit is found, not believed.

>>> import tempfile
>>> path = Path(tempfile.mkdtemp()) / "result.json"
>>> write_json(path, {"error": 0.5, "correlation": float("nan")})
>>> read_json(path)
{'error': 0.5, 'correlation': None}
>>> _ = path.write_text(path.read_text().replace("0.5", "0.4"))
>>> try:
...     read_json(path)
... except Damaged as error:
...     print(str(error).partition("/result.json ")[2])
is damaged (its values are not those that were sealed); delete the run folder to start again
"""

import errno
import fcntl
import glob
import hashlib
import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..errors import RunError
from .shapes import fault

log = logging.getLogger("sparring")
AGAIN = "delete the run folder to start again"
ADVICE = {
    errno.ENOENT: "its folder was removed meanwhile; the same command starts it again",
    errno.EACCES: "make the folder writable or choose another --out",
    errno.EROFS: "choose another --out",
}


class Damaged(RunError):
    """A file that is there and does not hold what was written."""


def cannot_write(path: Path, error: OSError) -> RunError:
    """The sentence for a write that the system refused, with what helps."""
    helps = ADVICE.get(error.errno or 0, "make room and run again")
    return RunError(f"cannot write {path}: {error.strerror or error}; {helps}")


def write_atomic(path: Path, content: bytes) -> None:
    """Put `content` at `path` in one instant: a temporary file beside it, fsync, rename, fsync of the folder."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise cannot_write(path, error) from error


def drop_leftovers(path: Path, age: float = 3600.0) -> None:
    """Remove what killed processes left beside `path` in the middle of `write_atomic`; what is younger may still be written."""
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        with suppress(OSError):
            if time.time() - leftover.stat().st_mtime > age:
                leftover.unlink()


def sync_folder(path: Path) -> None:
    """See that the names in a folder are on the disk."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def plain(value: Any) -> Any:
    """`value` with None for every number that JSON cannot hold (nan, inf).

    >>> plain({"correlation": float("nan"), "error": 0.5})
    {'correlation': None, 'error': 0.5}
    """
    if isinstance(value, Mapping):
        return {name: plain(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def seal(values: Mapping[str, Any]) -> str:
    """The checksum over what a file says, however it is spaced."""
    text = json.dumps(values, separators=(",", ":"), sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def sealed(values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` as JSON holds them, with their seal."""
    stored = json.loads(json.dumps(plain(values), allow_nan=False))  # keys become text before they are sealed
    return {**stored, "seal": seal(stored)}


def opened(text: str | bytes, shape: Any = None) -> dict[str, Any]:
    """What `sealed` closed; a `ValueError` that says what is wrong with it.

    Args:
        text: what was in the file.
        shape: what it must look like.
    """
    try:
        found = json.loads(text)
        if not isinstance(found, dict):
            raise ValueError(f"it holds {found!r:.60} instead of entries")
        known = found.pop("seal", None)
        if known is None:
            raise ValueError("it has no seal")
        if known != seal(found):
            raise ValueError("its values are not those that were sealed")
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if shape is not None and (wrong := fault(found, shape)):
        raise ValueError(wrong)
    return found


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """`write_atomic` of readable JSON with a seal."""
    write_atomic(path, (json.dumps(sealed(values), indent=1, allow_nan=False) + "\n").encode())


def read_json(path: Path, shape: Any = None) -> dict[str, Any]:
    """What `write_json` put at `path`; `Damaged` where the seal is broken or the entries are not of `shape`."""
    try:
        return opened(path.read_bytes(), shape)
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise Damaged(f"{path} is damaged ({error}); {AGAIN}") from error


@contextmanager
def locked(folder: Path, wait: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold a run folder against every other process; the lock dies with the process, however it dies.

    Args:
        folder: made where it does not exist.
        wait: called again and again while another process holds the lock; without it that is an error.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(folder / "lock", "a")  # noqa: SIM115 - must outlive this statement
    except OSError as error:
        raise RunError(f"cannot write to {folder}: {error.strerror}; choose another --out") from error
    with lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if wait is None:
                    raise RunError(
                        f"another process is writing {folder}; wait for it or choose another --out"
                    ) from error
                wait()
        for leftover in folder.glob(".*.tmp"):  # of a process that was killed while it wrote
            leftover.unlink(missing_ok=True)
        yield
