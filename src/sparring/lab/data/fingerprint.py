"""Which files were read, and their sums: the data is part of what a run is.

>>> import tempfile
>>> root = Path(tempfile.mkdtemp())
>>> _ = (root / "a.txt").write_text("one")
>>> with noted() as files:
...     note(root / "a.txt")
>>> fingerprint(files, root)["a.txt"][:8]
'7692c3ad'
"""

import os
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache, wraps
from pathlib import Path
from typing import TypeVar

from .download import sha256_of
from .errors import blame

T = TypeVar("T")
_noted: ContextVar[set[Path] | None] = ContextVar("noted", default=None)


@contextmanager
def noted() -> Iterator[set[Path]]:
    """The set in which `note` gathers files while the block runs."""
    files: set[Path] = set()
    token = _noted.set(files)
    try:
        yield files
    finally:
        _noted.reset(token)


def note(path: Path) -> None:
    """Say that a file is being read; the readers of this package do, and a task with readers of its own should."""
    files = _noted.get()
    if files is not None:
        files.add(path)


def remembered(most: int) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Keep the last `most` answers of a reader. A remembered answer counts as read, and is forgotten when a file changes.

    >>> @remembered(1)
    ... def read(path):
    ...     note(path)
    ...     return path.read_text()
    """

    def wrap(read: Callable[..., T]) -> Callable[..., T]:
        known: OrderedDict[tuple[Hashable, ...], tuple[T, dict[Path, tuple[int, int] | None]]] = OrderedDict()

        @wraps(read)
        def again(*arguments: Hashable) -> T:
            answer, files = known.pop(arguments, (None, None))
            if files is None or any(_state(path) != state for path, state in files.items()):
                with noted() as paths:
                    answer = read(*arguments)
                files = {path: _state(path) for path in paths}
            known[arguments] = answer, files  # type: ignore[assignment]
            while len(known) > most:
                known.popitem(last=False)
            for path in files:
                note(path)
            return answer  # type: ignore[return-value]

        return again

    return wrap


def _state(path: Path) -> tuple[int, int] | None:
    """What changes when a file does; None where it is gone."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_size, stat.st_mtime_ns


def fingerprint(files: Iterable[Path], root: Path) -> dict[str, str]:
    """The SHA-256 of each file by its name under `root` (its whole path elsewhere); those that are gone are left out."""
    found = {}
    for path in sorted(files):
        with blame(path):
            if path.is_file():
                stat = path.stat()
                name = path.relative_to(root).as_posix() if path.is_relative_to(root) else os.fspath(path)
                found[name] = _sum(path, stat.st_size, stat.st_mtime_ns)
    return found


@lru_cache(maxsize=4096)
def _sum(path: Path, size: int, modified: int) -> str:
    """The sum of a file; size and time are only there to forget one that was replaced."""
    return sha256_of(path)
