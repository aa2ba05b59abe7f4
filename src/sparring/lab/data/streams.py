"""Byte streams that unpack as they are read, and stop when they swell past any honest size."""

import bz2
import gzip
import io
import lzma
from collections.abc import Callable
from typing import BinaryIO, cast

from .errors import DataError, blame

WRAPPERS = (".gz", ".xz", ".bz2")
LIMIT = 8 << 30  # no published file we read is larger unpacked
FREE = 64 << 20  # small files may unpack to this much whatever their ratio
CHUNK = 1 << 16
RATIO = 100  # text packs 3 to 20 times; a bomb packs a thousand times and more


class Bounded(io.RawIOBase):
    """A read-only stream that raises `DataError` on damage or once it has given more than an honest file could.

    Example:
        >>> stream = Bounded(io.BytesIO(b"x" * 100), packed=1, file="bomb", limit=50)
        >>> stream.read()
        Traceback (most recent call last):
        ...
        sparring.lab.data.errors.DataError: bomb: unpacks to more than 50 bytes; refused as a decompression bomb

    Args:
        source: Where bytes come from.
        packed: Bytes on disk behind the stream; the bound is `min(limit, FREE + RATIO * packed)`.
        file: Name for messages.
        limit: Most bytes to give in any case.
        close: Called once when the stream is closed.
    """

    def __init__(
        self,
        source: BinaryIO,
        packed: int,
        file: object,
        limit: int = LIMIT,
        close: Callable[[], object] | None = None,
    ) -> None:
        self.source, self.file, self.given = source, file, 0
        self.bound = min(limit, FREE + RATIO * packed)
        self._close = close

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        with blame(self.file):
            chunk = self.source.read(len(buffer))
        buffer[: len(chunk)] = chunk
        self.given += len(chunk)
        if self.given > self.bound:
            raise DataError(f"unpacks to more than {self.bound:,} bytes; refused as a decompression bomb", self.file)
        return len(chunk)

    def close(self) -> None:
        if not self.closed:
            super().close()
            self.source.close()
            if self._close is not None:
                self._close()


def wrapper(name: str) -> str:
    """The wrapper suffix of a file name, or nothing.

    Example:
        >>> wrapper("train.txt.xz"), wrapper("train.txt")
        ('.xz', '')
    """
    return next((end for end in WRAPPERS if name.endswith(end)), "")


def unwrap(source: BinaryIO, suffix: str, packed: int, file: object, limit: int = LIMIT) -> io.BufferedReader:
    """Open what lies under a `.gz`, `.xz`, `.bz2` or no wrapper as a bounded stream.

    Example:
        >>> packed = gzip.compress(b"hello")
        >>> with unwrap(io.BytesIO(packed), ".gz", len(packed), "greeting.gz") as stream:
        ...     stream.read()
        b'hello'
    """
    if suffix and isinstance(source, io.BufferedReader) and not source.peek(1):
        source.close()
        raise DataError("is empty", file)  # gzip would take no bytes at all for an empty file
    inner: BinaryIO = source
    if suffix == ".gz":
        inner = cast(BinaryIO, gzip.GzipFile(fileobj=source))
    elif suffix == ".xz":
        inner = cast(BinaryIO, lzma.LZMAFile(source))  # noqa: SIM115
    elif suffix == ".bz2":
        inner = cast(BinaryIO, bz2.BZ2File(source))
    return io.BufferedReader(Bounded(inner, packed, file, limit, source.close), CHUNK)
