"""Where a file of the user's own lies, and a fingerprint of what is in it."""

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from ..errors import DataError, MissingData, blame


def locate(name: str, data: Path | None = None) -> Path:
    """The file or folder `name`: as typed, seen from the current folder, or under the data folder.

    >>> locate("no/such/file.csv")
    Traceback (most recent call last):
    ...
    sparring.lab.data.errors.MissingData: no/such/file.csv: there is no such file or folder
    """
    typed = Path(name).expanduser()
    for path in (typed, *([data / typed] if data is not None else [])):
        if path.exists():
            return path
    also = f" (looked in {data} too)" if data is not None and not typed.is_absolute() else ""
    raise MissingData(f"there is no such file or folder{also}", name)


def inside(path: Path) -> list[Path]:
    """A file itself, or every file below a folder; hidden ones are left out."""
    if not path.is_dir():
        return [path]
    with blame(path):
        found = sorted(path.rglob("*"))
    return [p for p in found if p.is_file() and not any(part.startswith(".") for part in p.relative_to(path).parts)]


def fingerprint(paths: Sequence[Path]) -> str:
    """Twelve hexadecimal digits that change when a byte or a name in these files and folders does."""
    found = []
    for path in paths:
        for file in inside(path):
            with blame(file):
                stat = file.stat()
            inner = file.relative_to(path).as_posix() if path.is_dir() else ""
            found.append((str(file), inner, stat.st_size, stat.st_mtime_ns))
    return _fingerprint(tuple(found))


@lru_cache(maxsize=64)
def _fingerprint(files: tuple[tuple[str, str, int, int], ...]) -> str:
    """Read once for all runs of a comparison; size and time of change are there to notice that a file is another one."""
    total = hashlib.sha256()
    for name, inner, size, _ in files:
        total.update(f"{inner}\0{size}\0".encode())
        with blame(name), open(name, "rb") as file:
            total.update(hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()[:12]


def changed(name: str) -> DataError:
    """The error about files that are not what a run began with."""
    return DataError(f"{name} has changed since this run began; start a new one, or put the old content back")
