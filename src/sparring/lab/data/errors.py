"""What goes wrong with data files, as one clear sentence that names the file and, where there is one, the line."""

import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

# Everything the standard library's decompressors and archive readers raise on damaged input.
DAMAGE = (
    EOFError,
    zlib.error,
    lzma.LZMAError,
    tarfile.TarError,
    zipfile.BadZipFile,
    zipfile.LargeZipFile,
    NotImplementedError,
    RuntimeError,
    UnicodeError,
    OverflowError,
    MemoryError,
    IndexError,
    KeyError,
    TypeError,
    ValueError,
)


class DataError(ValueError):
    """A data file that is missing, damaged, hostile or not in the format its name promises.

    Example:
        >>> str(DataError("has 3 columns, expected 4", file="CoLA/train.tsv", line=12))
        'CoLA/train.tsv, line 12: has 3 columns, expected 4'

    Args:
        reason: What is wrong, without the file's name.
        file: The file as the user knows it.
        line: Line number, from 1.
    """

    exit_code = 3  # of the command line

    def __init__(self, reason: str, file: object = None, line: int | None = None) -> None:
        place = "" if file is None else f"{file}: " if line is None else f"{file}, line {line}: "
        super().__init__(place + reason)
        self.reason = reason
        self.file = None if file is None else str(file)
        self.line = line


class UnknownData(DataError):
    """A data set of a name that does not exist."""

    exit_code = 2


class MissingData(DataError):
    """A file that is not in the data folder; the message says where to put it and how to fetch it."""


@contextmanager
def blame(file: object) -> Iterator[None]:
    """Turn whatever a decompressor, an archive reader or the system raises into one `DataError` about `file`.

    Example:
        >>> with blame("a.gz"):
        ...     raise EOFError("Compressed file ended before the end-of-stream marker was reached")
        Traceback (most recent call last):
        ...
        sparring.lab.data.errors.DataError: a.gz: damaged or cut short (Compressed file ended before the \
end-of-stream marker was reached)
    """
    try:
        yield
    except DataError:
        raise
    except OSError as error:
        # Without an error number it is gzip or bz2 complaining about the bytes, not the system about the file.
        text = f"damaged or cut short ({error})" if error.errno is None else f"cannot be read ({error.strerror})"
        raise DataError(text, file) from error
    except DAMAGE as error:
        raise DataError(f"damaged or cut short ({str(error) or type(error).__name__})", file) from error
