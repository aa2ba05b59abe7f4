"""Rating logs in their published formats, read as three aligned arrays: users, items, values.

MovieLens (`u.data`, `ratings.dat`, `ratings.csv`), Netflix Prize (`mv_0000001.txt`, ...), Million Song
(`train_triplets.txt`), and adjacency lists (`train.txt`: a user, then the items). Files may stand alone, in a folder,
or in a tar or zip, under any wrapper that `streams` opens.
"""

import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import numpy as np

from .archives import is_archive, members
from .errors import DataError, MissingData, blame
from .files import Folder, as_folder
from .streams import unwrap, wrapper


@dataclass(frozen=True)
class Ratings:
    """Who (`users`) gave which item (`items`) what (`values`); ids as published, one entry a rating."""

    users: np.ndarray
    items: np.ndarray
    values: np.ndarray

    def __len__(self) -> int:
        return len(self.users)


def read_ratings(path: Path | str) -> Ratings:
    """Read a rating log from a file, a folder or an archive; the format follows from the file's name.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "ratings.dat").write_text("1::1193::5::978300760\\n2::661::3::978302109\\n")
    ...     log = read_ratings(folder)
    >>> log.users.tolist(), log.items.tolist(), log.values.tolist()
    ([1, 2], [1193, 661], [5.0, 3.0])

    Args:
        path: where the log is. A folder or an archive may hold other files; several logs of one format are joined.
    """
    path = Path(path)
    return _joined(_files(path), path)


def named_ratings(data: Folder | Path | str | None, *names: str) -> Ratings:
    """Read rating logs by their logical names in a data folder (`movielens/ml-100k/u.data`), joined in order.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Path(folder, "movielens").mkdir()
    ...     _ = Path(folder, "movielens", "u.data").write_text("1\\t5\\t4\\t0\\n")
    ...     len(named_ratings(folder, "movielens/u.data"))
    1
    """
    folder = as_folder(data)
    return _joined(((name, stream) for name in names for stream in _opened(folder, name)), folder.root)


def _opened(folder: Folder, name: str) -> Iterator[BinaryIO]:
    with folder.open(name) as stream:
        yield stream


def _joined(files: Iterable[tuple[str, BinaryIO]], path: Path) -> Ratings:
    found: dict[str, list[Ratings]] = {}
    for name, stream in files:
        pattern = _format(name)
        if pattern is not None:
            lines = io.TextIOWrapper(stream, encoding="latin-1")
            with blame(name):
                found.setdefault(pattern, []).append(FORMATS[pattern](lines, name))
    if not found:
        raise MissingData(f"no rating log found; one of {', '.join(FORMATS)} was expected", path)
    parts = next(found[pattern] for pattern in FORMATS if pattern in found)
    log = Ratings(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("users", "items", "values")))
    if not len(log):
        raise DataError("holds no rating", path)
    return log


def _files(path: Path) -> Iterator[tuple[str, BinaryIO]]:
    if path.is_dir():
        logs = [p for p in sorted(path.iterdir()) if p.is_file() and not is_archive(p.name)]
        for file in logs:
            if _format(file.name) is not None:
                yield from _files(file)
    elif not path.is_file():
        raise MissingData("no such file or folder", path)
    elif is_archive(path.name):
        for name, stream in members(path):
            yield f"{path.name}/{name}", stream
    else:
        with blame(path), unwrap(open(path, "rb"), wrapper(path.name), path.stat().st_size, path) as stream:
            yield path.name, stream


def _format(name: str) -> str | None:
    """The key of `FORMATS` that a file name falls under, folders and wrapper aside: `ml-100k/u.data.xz` is `u.data`."""
    bare = PurePosixPath(name).name.removesuffix(wrapper(name))
    return next((key for key in FORMATS if any(fnmatch(bare, pattern) for pattern in key.split())), None)


def _table(lines: Iterable[str], name: str, separator: str, header: bool = False) -> Ratings:
    kept: list[tuple[int, int, float]] = []
    for number, line in enumerate(lines, 1):
        if (header and number == 1) or not line.strip():
            continue
        fields = line.split(separator)
        try:
            kept.append((int(fields[0]), int(fields[1]), float(fields[2])))
        except (ValueError, IndexError):
            wanted = f"user{separator}item{separator}rating"
            raise DataError(f"{line.strip()[:40]!r} is not {wanted!r}", name, number) from None
    users, items, values = zip(*kept) if kept else ((), (), ())
    return Ratings(np.array(users, np.int64), np.array(items, np.int64), np.array(values, np.float64))


def _netflix(lines: Iterable[str], name: str) -> Ratings:
    users: list[int] = []
    values: list[float] = []
    movie: int | None = None
    for number, line in enumerate(lines, 1):
        try:
            if movie is None:
                movie = int(line.strip().removesuffix(":"))
            elif line.strip():
                fields = line.split(",")
                users.append(int(fields[0]))
                values.append(float(fields[1]))
        except (ValueError, IndexError):
            raise DataError(f"{line.strip()[:40]!r} is not 'customer,rating,date'", name, number) from None
    return Ratings(np.array(users, np.int64), np.full(len(users), movie or 0), np.array(values, np.float64))


def _triplets(lines: Iterable[str], name: str) -> Ratings:
    rows = [line.rstrip("\n").split("\t") for line in lines if line.strip()]
    for number, row in enumerate(rows, 1):
        if len(row) != 3 or not row[2].isdecimal():
            raise DataError(f"{row} is not user TAB song TAB count", name, number)
    users, items, values = zip(*rows) if rows else ((), (), ())
    return Ratings(np.array(users, str), np.array(items, str), np.array(values, np.float64))


def _adjacency(lines: Iterable[str], name: str) -> Ratings:
    users: list[np.ndarray] = []
    items: list[np.ndarray] = []
    for number, line in enumerate(lines, 1):
        try:
            ids = np.array(line.split(), np.int64)
        except ValueError:
            raise DataError(f"{line.strip()[:40]!r} is not a user and its items", name, number) from None
        items.append(ids[1:])
        users.append(np.full(len(ids[1:]), ids[0] if len(ids) else 0))
    pairs = (np.concatenate(users), np.concatenate(items)) if users else (np.zeros(0, int), np.zeros(0, int))
    return Ratings(*pairs, np.full(len(pairs[0]), np.inf))


# File names -> reader, the most telling name first. Adjacency lists carry no value: every pair is a positive (inf).
FORMATS: dict[str, Callable[[Iterable[str], str], Ratings]] = {
    "u.data": lambda lines, name: _table(lines, name, "\t"),
    "ratings.dat": lambda lines, name: _table(lines, name, "::"),
    "ratings.csv": lambda lines, name: _table(lines, name, ",", header=True),
    "train_triplets.txt": _triplets,
    "mv_*.txt": _netflix,
    "train.txt valid.txt test.txt": _adjacency,
}
