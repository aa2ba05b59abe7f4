"""From files to splits: which rows train, validate and test, what the classes are, and a record of all of it."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...data.errors import DataError
from ...data.own.places import changed, fingerprint, locate
from ...data.own.splits import few, ranges, split
from ...data.own.tables import Table, read_table
from ...task import Setting, Value

PARTS = ("train", "validation", "test")
MOST_CLASSES = 1000

# The settings that every task over the user's files has.
FILES: dict[str, Value] = {
    "train": "",  # the file or folder to learn from; nothing: the embedded example
    "validation": "",  # made of the training rows where no file is given
    "test": "",
    "validation_share": 0.1,
    "test_share": 0.2,
    "split_seed": 0,
    "examples": 0,  # at most so many rows of the training file, each class in its share; 0: all
    "contents": "",  # a fingerprint of the files, found by itself: other contents are other runs
}
CELLS: dict[str, Value] = {"encoding": "auto", "delimiter": "auto", "header": True, "quotes": True}


@dataclass(frozen=True)
class Source:
    """One file as read: the label of every row, and how to blame a row."""

    file: str
    labels: list[str]
    blame: Callable[[int, str], DataError]
    encoding: str = ""


@dataclass(frozen=True)
class Division:
    """`rows[part]` is the file a split comes from and its rows there; `classes` are the names of the labels."""

    rows: Mapping[str, tuple[str, list[int]]]
    classes: tuple[str, ...]
    record: dict[str, Any]


def contents(*names: str) -> Callable[[Mapping[str, Value], Path | None], dict[str, Value]]:
    """For `Task.derive`: the fingerprint of the files that these settings name."""

    def derive(values: Mapping[str, Value], data: Path | None) -> dict[str, Value]:
        files = [locate(str(values[name]), data) for name in (*PARTS, *names) if values.get(name)]
        model = str(values.get("model", "")).rpartition(":")[0]
        if model.endswith(".py"):
            files.append(locate(model))
        return {"contents": fingerprint(files)} if files else {}

    return derive


def unchanged(setting: Setting, *names: str) -> None:
    """Refuse files that are not what the run began with."""
    seen = contents(*names)(setting.values, setting.data).get("contents", "")
    if setting["contents"] and seen != setting["contents"]:
        raise changed(", ".join(str(setting[name]) for name in PARTS if setting[name]))


def tables(setting: Setting) -> dict[str, Table]:
    """The tables that `train`, `validation` and `test` name; they must have the same columns."""
    found = {}
    for part in PARTS:
        if setting[part]:
            path = locate(setting[part], setting.data)
            found[part] = read_table(path, *(setting[name] for name in CELLS))
    return found


def divide(sources: Mapping[str, Source], setting: Setting, classes: bool = True) -> Division:
    """Classes and splits; parts that have no file of their own are cut out of the training rows.

    Args:
        sources: what was read, by part; `train` is among them.
        setting: shares and seed of the cut.
        classes: whether labels are classes (each is then in every part in its share).
    """
    train = sources["train"]
    names = class_names(train) if classes else ()
    index = {name: number for number, name in enumerate(names)}
    for source in sources.values():
        for row, label in enumerate(source.labels):
            if not label:
                raise source.blame(row, "has no label")
            if classes and label not in index:
                raise source.blame(row, f"has the label {label!r}, which no row of {train.file} has")
    kinds = [index[label] for label in train.labels] if classes else [0] * len(train.labels)
    kept = few(kinds, setting["examples"], setting["split_seed"])
    shares = {part: 0.0 if part in sources else setting[f"{part}_share"] for part in ("validation", "test")}
    if any(share == 0.0 and part not in sources for part, share in shares.items()):
        raise DataError("validation_share and test_share must be above 0 where no file is given", train.file)
    labels = [kinds[row] for row in kept]
    made = split(labels, shares["validation"], shares["test"], setting["split_seed"], names, train.file)
    rows = {part: ("train", [kept[row] for row in chosen]) for part, chosen in zip(PARTS, made)}
    for part in ("validation", "test"):
        if part in sources:
            rows[part] = (part, list(range(len(sources[part].labels))))
    tally = Counter(train.labels)
    counts = {name: tally[name] for name in names}
    record: dict[str, Any] = {
        "files": {part: describe(source) for part, source in sources.items()},
        "contents": setting["contents"],
        "splits": {
            part: {"rows of": sources[of].file, "count": len(chosen), "rows": ranges(chosen)}
            for part, (of, chosen) in rows.items()
        },
        "split_seed": setting["split_seed"],
    }
    return Division(rows, names, record | ({"classes": counts} if classes else {}))


def describe(source: Source) -> dict[str, Any]:
    """A file in the record."""
    return {"file": source.file, "rows": len(source.labels)} | (
        {"encoding": source.encoding} if source.encoding else {}
    )


def class_names(source: Source) -> tuple[str, ...]:
    """The different labels of a file, in order: as numbers where all are, else by the alphabet."""
    found = sorted({label for label in source.labels if label}, key=by_number)
    if len(found) < 2:
        only = f"only the label {found[0]!r}" if found else "no label"
        raise DataError(f"holds {only}; two classes at least are needed", source.file)
    if len(found) > MOST_CLASSES or (len(found) > 20 and 2 * len(found) > len(source.labels)):
        raise DataError(
            f"has {len(found)} different labels in {len(source.labels)} rows: is that column a class? "
            "(numbers are for the task table-regression)",
            source.file,
        )
    return tuple(found)


def by_number(label: str) -> tuple[float, str]:
    """Sorts 2 before 10, and numbers before words."""
    try:
        return float(label), label
    except ValueError:
        return float("inf"), label


def summary(record: Mapping[str, Any]) -> str:
    """The record in one line, for the screen.

    >>> summary({"sample": "scikit-learn's digits", "splits": {"train": {"count": 8}, "test": {"count": 2}}})
    "the embedded example (scikit-learn's digits): 8 train, 2 test"
    """
    where = (
        f"the embedded example ({record['sample']})"
        if "sample" in record
        else ", ".join(
            f"{file['file']} ({file['encoding']})" if file.get("encoding") else file["file"]
            for file in record["files"].values()
        )
    )
    counts = ", ".join(f"{part['count']:,} {name}" for name, part in record["splits"].items())
    classes: Sequence[str] = list(record.get("classes", ()))
    shown = ", ".join(classes[:8]) + (", ..." if len(classes) > 8 else "")
    return f"{where}: {counts}" + (f"; classes {shown}" if classes else "")
