"""Rating logs in their published formats, read as three aligned arrays: users, items, values.

MovieLens (`u.data`, `ratings.dat`, `ratings.csv`), Netflix Prize (`mv_0000001.txt`, ... or `combined_data_1.txt`, ...),
Million Song (`train_triplets.txt`), adjacency lists (`train.txt`: a user, then the items), and anybody's `*.csv` or
`*.tsv`. Files may stand alone, in a folder, or in a tar or zip, under any wrapper that `streams` opens.
"""

import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ..archives import entries, is_archive
from ..errors import DataError, MissingData, blame
from ..files import Folder, as_folder
from ..fingerprint import note
from ..streams import unwrap, wrapper
from .formats import FORMATS, Ratings, format_of


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

    A name that ends in `/` stands for every log in that folder.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Path(folder, "movielens").mkdir()
    ...     _ = Path(folder, "movielens", "u.data").write_text("1\\t5\\t4\\t0\\n")
    ...     len(named_ratings(folder, "movielens/u.data"))
    1
    """
    folder = as_folder(data)
    return _joined((opened for name in names for opened in _opened(folder, name)), folder.root)


def _opened(folder: Folder, name: str) -> Iterator[tuple[str, BinaryIO]]:
    if name.endswith("/"):  # a folder of logs, such as Netflix's 17,770 files
        yield from ((inside, io.BytesIO(raw)) for inside, raw in folder.walk(name))
        return
    with folder.open(name) as stream:
        yield name, stream


def _joined(files: Iterable[tuple[str, BinaryIO]], path: Path) -> Ratings:
    found: dict[str, list[Ratings]] = {}
    for name, stream in files:
        pattern = format_of(name)
        if pattern is not None:
            lines = io.TextIOWrapper(stream, encoding="latin-1")
            with blame(name):
                found.setdefault(pattern, []).append(FORMATS[pattern](lines, name))
    if not found:
        raise MissingData(f"no rating log found; one of {', '.join(FORMATS)} was expected", path)
    parts = next(found[pattern] for pattern in FORMATS if pattern in found)
    if not any(len(part) for part in parts):
        raise DataError("holds no rating", path)
    if len(parts) == 1:
        return parts[0]
    if any(part.names for part in parts):
        raise DataError("holds several logs with names for ids, which cannot be joined; keep one", path)
    users, items, values = ([getattr(part, name) for part in parts] for name in ("users", "items", "values"))
    return Ratings(np.concatenate(users), np.concatenate(items), np.concatenate(values))


def _files(path: Path) -> Iterator[tuple[str, BinaryIO]]:
    if path.is_dir():
        logs = [p for p in sorted(path.iterdir()) if p.is_file() and not is_archive(p.name)]
        for file in logs:
            if format_of(file.name) is not None:
                yield from _files(file)
    elif not path.is_file():
        raise MissingData("no such file or folder", path)
    elif is_archive(path.name):
        note(path)
        for name, opened in entries(path):
            if format_of(name) is not None:
                with unwrap(opened(), wrapper(name), path.stat().st_size, f"{path}/{name}") as stream:
                    yield f"{path.name}/{name}", stream
    else:
        note(path)
        with blame(path), unwrap(open(path, "rb"), wrapper(path.name), path.stat().st_size, path) as stream:
            yield path.name, stream
