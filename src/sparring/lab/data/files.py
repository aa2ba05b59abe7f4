"""One view of the data folder: a logical file, whether it lies plain, wrapped, or inside an archive."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from .archives import entries, is_archive
from .catalogue import DATASETS, fetchable
from .errors import DataError, MissingData, blame
from .fingerprint import note
from .streams import LIMIT, WRAPPERS, unwrap, wrapper

WHOLE = 2 << 30  # most bytes read into memory at once


def folder_of(data: "str | Path | None" = None) -> Path:
    """The data folder: the argument, else the environment variable SPARRING_DATA, else the user's cache.

    Example:
        >>> folder_of("elsewhere").name
        'elsewhere'
    """
    if data is not None:
        return Path(data).expanduser()
    if os.environ.get("SPARRING_DATA"):
        return Path(os.environ["SPARRING_DATA"]).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sparring" / "data"


@dataclass(frozen=True)
class Place:
    """Where a logical file lies: a file on disk, and the member inside it if that file is an archive."""

    path: Path
    member: str = ""

    def __str__(self) -> str:
        return f"{self.path}/{self.member}" if self.member else str(self.path)


@dataclass(frozen=True)
class Folder:
    """The data folder seen as if every wrapper and archive in it were unpacked.

    A logical name such as `sst/trees/train.txt` is found as that file, as `train.txt.gz` (`.xz`, `.bz2`), or as the
    member `trees/train.txt` of any tar or zip in `sst/`. A name that ends in `/` stands for a folder.

    Example:
        >>> import gzip, tempfile
        >>> with tempfile.TemporaryDirectory() as where:
        ...     _ = Path(where, "a.txt.gz").write_bytes(gzip.compress(b"one\\ntwo\\n"))
        ...     list(Folder(Path(where)).lines("a.txt"))
        [(1, 'one'), (2, 'two')]
    """

    root: Path

    def find(self, name: str) -> Place | None:
        """Where `name` lies, or None."""
        with blame(self.root):
            return self._find(name)

    def _find(self, name: str) -> Place | None:
        parts = PurePosixPath(name).parts
        if not parts or PurePosixPath(name).is_absolute() or ".." in parts:
            raise DataError(f"{name!r} is not a name inside the data folder; use a relative path without '..'")
        for depth in range(len(parts) - 1, -1, -1):
            here, rest = self.root.joinpath(*parts[:depth]), "/".join(parts[depth:])
            if depth == len(parts) - 1:
                if name.endswith("/"):
                    if (here / rest).is_dir() and any((here / rest).iterdir()):
                        return Place(here / rest)
                elif plain := next(
                    (here / (rest + end) for end in ("", *WRAPPERS) if (here / (rest + end)).is_file()), None
                ):
                    return Place(plain)
            for archive in _archives(here):
                stat = archive.stat()
                member = _member(archive, rest + "/" * name.endswith("/"), stat.st_size, stat.st_mtime_ns)
                if member:
                    return Place(archive, member)
        return None

    def place(self, name: str) -> Place:
        """Where `name` lies; raises `MissingData` with advice if it does not."""
        found = self.find(name)
        if found is None:
            raise MissingData(missing(name, self.root))
        return found

    @contextmanager
    def open(self, name: str, limit: int = LIMIT) -> Iterator[BinaryIO]:
        """The unpacked bytes of a logical file, as a bounded stream."""
        place = self.place(name)
        note(place.path)
        if not place.member:
            with blame(place):
                stream = unwrap(
                    place.path.open("rb"), wrapper(place.path.name), place.path.stat().st_size, place, limit
                )
            with stream:
                yield stream
            return
        for member, opened in entries(place.path, limit):
            if member == place.member:
                with unwrap(opened(), wrapper(member), place.path.stat().st_size, place, limit) as stream:
                    yield stream
                return
        raise DataError(f"changed while it was read: {place.member} is gone", place.path)

    def read(self, name: str, limit: int = WHOLE) -> bytes:
        """The whole logical file."""
        with self.open(name, limit) as stream:
            return stream.read()

    def lines(self, name: str, encoding: str = "utf-8") -> Iterator[tuple[int, str]]:
        """Yield `(line number from 1, text without its line end)`. Only newline ends a line, with or without return."""
        with self.open(name) as stream:
            for number, raw in enumerate(stream, 1):
                try:
                    text = raw.decode(encoding)
                except UnicodeDecodeError as error:
                    raise DataError(f"is not {encoding} text ({error.reason})", name, number) from error
                if number == 1:
                    text = text.removeprefix("\ufeff")
                yield number, text.removesuffix("\n").removesuffix("\r")

    def text(self, name: str, encoding: str = "utf-8") -> str:
        """The whole logical file as text."""
        try:
            return self.read(name).decode(encoding).removeprefix("\ufeff")
        except UnicodeDecodeError as error:
            raise DataError(f"is not {encoding} text ({error.reason} at byte {error.start:,})", name) from error

    def walk(self, under: str) -> Iterator[tuple[str, bytes]]:
        """Yield `(logical name, bytes)` of every file below a logical folder, from disk and from archives, each once.

        Archives are streamed in one pass, so folders of a hundred thousand small files (IMDB) stay quick. The order is
        that of the disk (sorted) and of the archives; sort if it matters.
        """
        parts = PurePosixPath(under).parts
        seen: set[str] = set()
        with blame(self.root):
            plain = [p for p in sorted(self.root.joinpath(*parts).rglob("*")) if p.is_file() and not is_archive(p.name)]
        for path in plain:
            name = path.relative_to(self.root).as_posix()
            name = name.removesuffix(wrapper(name))
            if name not in seen:
                seen.add(name)
                yield name, self.read(name)
        inside = "/".join(parts) + "/"
        for depth in range(len(parts), -1, -1):
            prefix = "".join(part + "/" for part in parts[:depth])
            for archive in _archives(self.root.joinpath(*parts[:depth])):
                packed = archive.stat().st_size
                for member, opened in entries(archive):
                    name = prefix + member
                    if not name.startswith(inside) or name in seen:
                        continue
                    seen.add(name)
                    note(archive)
                    with blame(f"{archive}/{member}"):
                        if not wrapper(member):
                            yield name, opened().read()
                            continue
                        with unwrap(opened(), wrapper(member), packed, f"{archive}/{member}", WHOLE) as stream:
                            yield name.removesuffix(wrapper(member)), stream.read()
        if not seen:
            raise MissingData(missing(under, self.root))


def as_folder(data: "Folder | str | Path | None") -> Folder:
    """What every reader's `data` argument may be, as a `Folder`.

    One that does not exist is an empty one: the reader then says which file it misses and where to put it.

    Example:
        >>> as_folder("no/such/place").find("sst/trees/train.txt") is None
        True
    """
    if isinstance(data, Folder):
        return data
    root = folder_of(data)
    with blame(root), suppress(FileNotFoundError):
        os.scandir(root).close()
    return Folder(root)


def missing(name: str, root: Path) -> str:
    """The sentence that says where a missing file belongs and how to get it."""
    what = "folder" if name.endswith("/") else "file"
    kinds = "as it is" if what == "folder" else "plain, as .gz, .xz or .bz2"
    known = fetchable(name)
    fetch = f", or run `sparring data get {known}` where there is a network" if known else ""
    if known and name not in DATASETS[known].needs:
        fetch += f" (it brings {', '.join(DATASETS[known].needs)})"
    return (
        f"{name} is not under {root}; put that {what} there ({kinds}, or inside a tar or zip in "
        f"{root / PurePosixPath(name).parts[0]}){fetch}; another data folder: --data DIR or SPARRING_DATA"
    )


def _archives(here: Path) -> list[Path]:
    if not here.is_dir():
        return []
    with blame(here):
        return sorted(path for path in here.iterdir() if is_archive(path.name) and path.is_file())


@lru_cache(maxsize=4096)
def _member(archive: Path, name: str, size: int, modified: int) -> str:
    """The member that holds `name`, or nothing; size and time are only there to forget a file that was replaced."""
    wanted = {name + end for end in ("", *WRAPPERS)}
    for member, _ in entries(archive):
        if member in wanted or (name.endswith("/") and member.startswith(name)):
            return member
    return ""
