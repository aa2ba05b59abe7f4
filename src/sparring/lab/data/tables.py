"""Tab-separated rows with their line numbers, and names turned into class numbers."""

from collections.abc import Iterator, Sequence

import numpy as np

from .errors import DataError
from .files import Folder
from .records import Texts


def rows(folder: Folder, name: str, columns: int) -> Iterator[tuple[int, list[str]]]:
    """Yield `(line number, fields)` of a tab-separated file without quoting; a row of another width is an error."""
    for number, line in folder.lines(name):
        fields = line.split("\t")
        if len(fields) != columns:
            raise DataError(f"has {len(fields)} columns, expected {columns}", name, number)
        yield number, fields


def headed(folder: Folder, name: str, *wanted: str, short: int = 0) -> Iterator[tuple[int, list[str]]]:
    """Yield `(line number, the wanted columns)` of a tab-separated file whose first line names its columns.

    A row of another width is an error; up to `short` rows that end early are passed over, for files published with them.
    """
    header: list[str] = []
    index: list[int] = []
    for number, line in folder.lines(name):
        fields = line.split("\t")
        if number == 1:
            header = fields
            for column in wanted:
                if column not in header:
                    raise DataError(f"has no column {column!r}; it has {', '.join(header)[:200]}", name, 1)
            index = [header.index(column) for column in wanted]
            continue
        if len(fields) < len(header) and short:
            short -= 1
            continue
        if len(fields) != len(header):
            raise DataError(f"has {len(fields)} columns, the header has {len(header)}", name, number)
        yield number, [fields[i] for i in index]
    if not header:
        raise DataError("is empty", name)


def class_of(text: str, classes: Sequence[str], file: str, line: int) -> int:
    """The number of a class by its name.

    Example:
        >>> class_of("no", ["no", "yes"], "answers.tsv", 3)
        0
        >>> class_of("maybe", ["no", "yes"], "answers.tsv", 3)
        Traceback (most recent call last):
        ...
        sparring.lab.data.errors.DataError: answers.tsv, line 3: has the label 'maybe', expected one of no, yes
    """
    try:
        return list(classes).index(text)
    except ValueError:
        raise DataError(f"has the label {text[:40]!r}, expected one of {', '.join(classes)}", file, line) from None


def some(texts: Texts, file: str) -> Texts:
    """The texts, unless there are none: a file that holds no example was cut short, or is another file."""
    if not len(texts):
        raise DataError("holds no example", file)
    return texts


def integers(values: Sequence[int]) -> np.ndarray:
    """Class numbers as an int64 array, also when there are none."""
    return np.array(values, dtype=np.int64)
