"""Archives read in place: the files inside a tar or a zip, one stream after another, nothing written to disk."""

import io
import re
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

from .errors import DataError, blame
from .streams import CHUNK, LIMIT, Bounded, unwrap

TARS = {
    ".tar": "",
    ".tar.gz": ".gz",
    ".tgz": ".gz",
    ".tar.xz": ".xz",
    ".txz": ".xz",
    ".tar.bz2": ".bz2",
    ".tbz2": ".bz2",
}


def is_archive(name: str) -> bool:
    """Whether a file name is that of an archive we open.

    Example:
        >>> is_archive("trees.tar.xz"), is_archive("ml-100k.zip"), is_archive("train.txt.xz")
        (True, True, False)
    """
    return name.endswith((".zip", *TARS))


ODD = re.compile(r"^[/.]|\.\.|[\\:\0]|//|/\.|/$")
Open = Callable[[], BinaryIO]


def members(path: Path, limit: int = LIMIT) -> Iterator[tuple[str, BinaryIO]]:
    """Yield `(name, stream)` for every file in an archive; as `entries`, with every file opened."""
    for name, opened in entries(path, limit):
        yield name, opened()


def entries(path: Path, limit: int = LIMIT) -> Iterator[tuple[str, Open]]:
    """Yield `(name, open)` for every file in an archive, in its order; a stream lives until the next name is asked for.

    Members that could leave a folder (absolute, `..`) or stand for something else (links, devices, sparse files) are
    refused even though nothing is unpacked: an archive that holds one is not what it says it is.
    """
    yield from (_zip_members if path.name.endswith(".zip") else _tar_members)(path, limit)


def checked(name: str, path: Path) -> str:
    """The member's name as a clean relative path.

    Example:
        >>> checked("./trees/train.txt", Path("trees.tar"))
        'trees/train.txt'
        >>> checked("../../etc/passwd", Path("trees.tar"))
        Traceback (most recent call last):
        ...
        sparring.lab.data.errors.DataError: trees.tar: refused, because member '../../etc/passwd' leaves its folder
    """
    if name and ODD.search(name) is None:
        return name  # archives of a hundred thousand members are common
    parts = PurePosixPath(name.replace("\\", "/")).parts
    if name.startswith(("/", "\\")) or ".." in parts or "\0" in name or (parts and parts[0].endswith(":")):
        raise DataError(f"refused, because member {name!r} leaves its folder", path)
    if not parts and name not in (".", "./"):  # tar's own name for the folder itself
        raise DataError(f"refused, because a member has the name {name!r}", path)
    return "/".join(part for part in parts if part != ".")


def _tar_members(path: Path, limit: int) -> Iterator[tuple[str, Open]]:
    suffix = next(TARS[end] for end in sorted(TARS, key=len, reverse=True) if path.name.endswith(end))
    with blame(path):
        packed = path.stat().st_size
        stream = unwrap(path.open("rb"), suffix, packed, path, limit)
    with stream:
        with blame(path):
            archive = tarfile.open(fileobj=stream, mode="r|")  # noqa: SIM115
        with archive:
            while True:
                with blame(path):
                    entry = archive.next()
                if entry is None:
                    break
                name = checked(entry.name, path)
                if entry.isdir():
                    continue
                if not entry.isreg() or entry.issparse():
                    raise DataError(f"refused, because member {entry.name!r} is a link or a device, not a file", path)
                yield name, partial(_tar_body, archive, entry, path)
                archive.members.clear()  # type: ignore[attr-defined]  # tarfile keeps every header it has seen
            # tarfile takes a missing end mark for the end: a file cut between two members would pass unseen.
            ended = archive.offset + tarfile.BLOCKSIZE <= cast(Bounded, stream.raw).given
        if not ended:
            raise DataError("damaged or cut short (the archive has no end mark)", path)


def _zip_members(path: Path, limit: int) -> Iterator[tuple[str, Open]]:
    with blame(path):
        archive = zipfile.ZipFile(path)
    with archive:
        for entry in archive.infolist():
            name = checked(entry.filename, path)
            if entry.is_dir():
                continue
            if (entry.external_attr >> 16) & 0o170000 == 0o120000:
                raise DataError(f"refused, because member {entry.filename!r} is a link, not a file", path)
            yield name, partial(_zip_body, archive, entry, path, limit)


def _tar_body(archive: tarfile.TarFile, entry: tarfile.TarInfo, path: Path) -> BinaryIO:
    with blame(path):
        body = archive.extractfile(entry)
    assert body is not None  # regular members always have a body
    return cast(BinaryIO, body)  # the stream of the whole archive is bounded already


def _zip_body(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, path: Path, limit: int) -> BinaryIO:
    with blame(path):
        body = archive.open(entry)
    return io.BufferedReader(
        Bounded(cast(BinaryIO, body), entry.compress_size, f"{path}/{entry.filename}", limit), CHUNK
    )
