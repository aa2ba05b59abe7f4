"""Tables as people have them: csv, tsv and jsonl, plain or packed, in the encoding they carry or are said to have."""

import codecs
import csv
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import DataError
from ..files import Folder
from ..streams import wrapper

MARKS = {  # byte-order marks, the longer before the shorter that it begins with
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
DELIMITERS = {"comma": ",", "semicolon": ";", "tab": "\t", "bar": "|"}
LONGEST = 1 << 24  # characters of one cell


@dataclass(frozen=True)
class Table:
    """Rows of cells, every one a string, with the line of the file that each began on."""

    file: str
    encoding: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    lines: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def place(self, name: str, setting: str) -> int:
        """Where the column `name` stands; an error that lists the columns there are and the setting that names it."""
        found = [place for place, column in enumerate(self.columns) if column == name]
        if len(found) == 1:
            return found[0]
        there = ", ".join(repr(column) for column in self.columns[:20]) + (", ..." if len(self.columns) > 20 else "")
        wrong = f"has {len(found)} columns {name!r}" if found else f"has no column {name!r}"
        raise DataError(f"{wrong}; it has {there}: write --set {setting}=NAME", self.file)

    def column(self, name: str, setting: str) -> list[str]:
        """The cells of a column."""
        place = self.place(name, setting)
        return [row[place] for row in self.rows]

    def error(self, row: int, reason: str) -> DataError:
        """The error about one row."""
        return DataError(reason, self.file, self.lines[row])


def decoded(raw: bytes, file: str, encoding: str = "auto") -> tuple[str, str]:
    """Text and its encoding: by the byte-order mark, else UTF-8, else an error that asks for the encoding.

    >>> decoded("é".encode(), "a.csv"), decoded(b"\\xe9", "a.csv", "latin-1")
    (('é', 'utf-8'), ('é', 'latin-1'))
    >>> decoded(b"name\\ncaf\\xe9\\n", "a.csv")
    Traceback (most recent call last):
    ...
    sparring.lab.data.errors.DataError: a.csv, line 2: byte 0xe9 is not utf-8 text; write --set encoding=cp1252 \
(or what it is)
    """
    if encoding == "auto":
        encoding = next((name for mark, name in MARKS.items() if raw.startswith(mark)), "utf-8")
        advice = "; write --set encoding=cp1252 (or what it is)"
    else:
        advice = "; name another --set encoding"
        try:
            codecs.lookup(encoding)
        except LookupError:
            raise DataError(f"encoding={encoding!r} is not known; utf-8, cp1252 and latin-1 are", file) from None
    try:
        return raw.decode(encoding), encoding
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise DataError(f"byte 0x{raw[error.start]:02x} is not {encoding} text{advice}", file, line) from None
    except UnicodeError as error:
        raise DataError(f"is not {encoding} text ({error}){advice}", file) from None


def delimiter_of(first: str, suffix: str, given: str) -> str:
    """What stands between cells: as given, a tab in .tsv, else whatever the first line has most of.

    >>> delimiter_of("a;b;c, d", ".csv", "auto"), delimiter_of("a,b", ".tsv", "auto"), delimiter_of("a", ".csv", "tab")
    (';', '\\t', '\\t')
    """
    if given != "auto":
        chosen = DELIMITERS.get(given, given)
        if len(chosen) != 1 or chosen in '"\r\n':
            raise DataError(f"delimiter={given!r} does not fit; {', '.join(DELIMITERS)} or one character would")
        return chosen
    if suffix == ".tsv":
        return "\t"
    return max(DELIMITERS.values(), key=lambda mark: (first.count(mark), mark == ","))


def read_table(
    path: Path, encoding: str = "auto", delimiter: str = "auto", header: bool = True, quotes: bool = True
) -> Table:
    """The table in a `.csv`, `.tsv` or `.jsonl` file (also `.gz`, `.xz`, `.bz2` of it).

    Args:
        path: the file.
        encoding: "auto" reads the byte-order mark and else expects UTF-8.
        delimiter: "auto", a name in `DELIMITERS`, or the character.
        header: whether the first line names the columns; they are called 1, 2, 3, ... otherwise.
        quotes: whether `"` wraps cells.
    """
    name = path.name.removesuffix(wrapper(path.name))
    suffix = Path(name).suffix.lower()
    if suffix not in (".csv", ".tsv", ".txt", ".jsonl", ".ndjson"):
        raise DataError("is not a table that can be read; .csv, .tsv and .jsonl files are (also packed)", path)
    if not path.is_file():
        raise DataError("there is no such file", path)
    text, found = decoded(Folder(path.parent).read(path.name), str(path), encoding)
    if "\0" in text:
        raise DataError("holds NUL characters: it is not text, or --set encoding=utf-16 is needed", path)
    if suffix in (".jsonl", ".ndjson"):
        columns, numbered = json_lines(text, str(path))
    else:
        mark = delimiter_of(text[: text.find("\n") + 1 or None], suffix, delimiter)
        rows = cells(text, str(path), mark, quotes)
        first = next(rows, None)
        if first is None:
            raise DataError("is empty", path)
        columns = first[1] if header else tuple(str(n) for n in range(1, len(first[1]) + 1))
        numbered = [*([] if header else [first]), *rows]
    for line, row in numbered:
        if len(row) != len(columns):
            raise DataError(f"has {len(row)} cells, expected {len(columns)}", path, line)
    if not numbered:
        raise DataError("holds no row", path)
    return Table(str(path), found, columns, tuple(row for _, row in numbered), tuple(line for line, _ in numbered))


def cells(text: str, file: str, delimiter: str, quotes: bool) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield `(line the row begins on, cells)`; blank lines are none."""
    before = csv.field_size_limit(LONGEST)
    line = 1
    try:
        reader = csv.reader(
            io.StringIO(text, newline=""),
            delimiter=delimiter,
            quoting=csv.QUOTE_MINIMAL if quotes else csv.QUOTE_NONE,
            strict=True,
        )
        for row in reader:
            if row:
                yield (
                    line,
                    tuple(cell.strip() if place else cell.lstrip("\ufeff").strip() for place, cell in enumerate(row)),
                )
            line = reader.line_num + 1
    except csv.Error as error:
        advice = "; write --set quotes=false if quotes are ordinary characters here" if quotes else ""
        raise DataError(f"cannot be cut into cells ({error}){advice}", file, line) from None
    finally:
        csv.field_size_limit(before)


def json_lines(text: str, file: str) -> tuple[tuple[str, ...], list[tuple[int, tuple[str, ...]]]]:
    """Columns and rows of one JSON object a line; all have the keys of the first, null is an empty cell."""
    columns: tuple[str, ...] = ()
    rows = []
    for line, content in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        if not content.strip():
            continue
        try:
            entry = json.loads(content)
        except RecursionError:
            raise DataError("is nested too deeply", file, line) from None
        except ValueError as error:
            raise DataError(f"is not JSON ({error})", file, line) from None
        if not isinstance(entry, dict):
            raise DataError(f"holds a {type(entry).__name__}, expected an object with names and values", file, line)
        columns = columns or tuple(entry)
        if set(entry) != set(columns):
            odd = sorted(set(entry) ^ set(columns))[0]
            raise DataError(f"{odd!r} stands in some objects only; give every line the same names", file, line)
        rows.append((line, tuple(cell(entry[name], name, file, line) for name in columns)))
    if not rows:
        raise DataError("is empty", file)
    return columns, rows


def cell(value: Any, name: str, file: str, line: int) -> str:
    """A JSON value as a cell."""
    if isinstance(value, (dict, list)):
        raise DataError(f"{name!r} is a {type(value).__name__}; a text or a number is needed", file, line)
    return "" if value is None else value.strip() if isinstance(value, str) else json.dumps(value)
