"""`table` and `table-regression`: columns of numbers and words, and a class or a number to predict."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...data.errors import DataError
from ...data.own.tables import Table
from ...task import Data, Setting, Split, Task, Value
from . import judge
from .methods import around_input
from .models import chosen, table_menu
from .rows import CELLS, FILES, Source, contents, divide, tables, unchanged

MISSING = {"", "na", "n/a", "nan", "null", "none", "?", "-"}
MOST_WORDS = 50  # different words of a column that become columns of their own


def number(text: str) -> float | None:
    """A cell as a number; None where it is none (infinities are none).

    >>> number("1.5"), number("1e3"), number("red"), number("inf")
    (1.5, 1000.0, None, None)
    """
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def load(setting: Setting, goal: str) -> Data:
    """Numbers standardised by the training rows, words as columns of 0 and 1, missing cells marked."""
    found = tables(setting) if setting["train"] else {"train": sample(goal)}
    if setting["train"]:
        unchanged(setting)
    target = setting["target"]
    sources = {part: Source(t.file, t.column(target, "target"), t.error, t.encoding) for part, t in found.items()}
    division = divide(sources, setting, classes=goal == "classes")
    answers = {part: targets(found[part], target, division.classes) for part in found}
    names = chosen_columns(found["train"], setting, target)
    of_train = division.rows["train"][1]
    coders = [Coder.fit(found["train"], name, of_train) for name in names]
    values = {part: torch.cat([coder(table) for coder in coders], 1) for part, table in found.items()}
    if not values["train"].shape[1]:
        raise DataError("no column is left to learn from: all of them are constant or left out", found["train"].file)
    centre, unit = (0.0, 1.0) if goal == "classes" else spread(answers["train"][of_train], found["train"].file)
    splits: list[Split] = []
    for part, (of, rows) in division.rows.items():
        if goal == "classes":
            splits.append((judge.Final if part == "test" else Split)(values[of][rows], answers[of][rows]))
        else:
            scaled = ((answers[of][rows] - centre) / unit).float()
            splits.append(judge.Scaled(values[of][rows], scaled, unit=unit))
    record = {**division.record, "columns": {c.name: c.described for c in coders}}
    if goal != "classes":
        record |= {"target": {"mean": centre, "standard deviation": unit}}
    if not setting["train"]:
        record["sample"] = found["train"].file
    train, validation, test = splits
    return Data(train, validation, test, extra={"classes": division.classes}, record=record)


def spread(values: Tensor, file: str) -> tuple[float, float]:
    """Mean and standard deviation of the numbers to predict."""
    centre, unit = float(values.mean()), float(values.std())
    if not unit > 0:
        raise DataError("the target is the same number in every training row", file)
    return centre, unit


def targets(table: Table, name: str, classes: Sequence[str]) -> Tensor:
    """What is to be predicted: class numbers, or the numbers themselves."""
    cells = table.column(name, "target")
    if classes:
        return torch.tensor([classes.index(cell) for cell in cells])
    values = [number(cell) for cell in cells]
    for row, value in enumerate(values):
        if value is None:
            advice = "a number is needed (classes are for the task table)"
            raise table.error(row, f"column {name!r} holds {cells[row]!r}; {advice}")
    return torch.tensor(values, dtype=torch.float64)


def chosen_columns(table: Table, setting: Setting, target: str) -> list[str]:
    """The columns to learn from: those named by `columns`, else all but the target and those named by `ignore`."""
    wanted = [name.strip() for name in setting["columns"].split(",") if name.strip()]
    ignored = {name.strip() for name in setting["ignore"].split(",") if name.strip()}
    for name in wanted:
        table.place(name, "columns")
    for name in ignored:
        table.place(name, "ignore")
    names = [name for name in wanted or table.columns if name != target and name not in ignored]
    for name in names:
        table.place(name, "columns")  # twice the same name cannot be told apart
    return names


class Coder:
    """Turns the cells of one column into numbers, as fitted on the training rows."""

    def __init__(self, name: str, words: Sequence[str], mean: float, scale: float, gaps: bool) -> None:
        self.name, self.words, self.mean, self.scale, self.gaps = name, list(words), mean, scale, gaps
        what = f"{len(words)} words" if words else f"numbers, mean {mean:.4g}, standard deviation {scale:.4g}"
        self.described = "constant, left out" if not words and not scale else what + ", with gaps" * gaps

    @classmethod
    def fit(cls, table: Table, name: str, rows: Sequence[int]) -> "Coder":
        """Numbers where every cell is one (or missing), else words."""
        every = table.column(name, "columns")
        cells = [every[row] for row in rows]
        there = [cell for cell in cells if cell.lower() not in MISSING]
        values = [number(cell) for cell in there]
        gaps = len(there) < len(cells)
        if all(value is not None for value in values):
            numbers = torch.tensor(values, dtype=torch.float64)
            scale = float(numbers.std(unbiased=False)) if len(numbers) else 0.0
            return cls(name, (), float(numbers.mean()) if len(numbers) else 0.0, scale, gaps)
        count = Counter(there)
        if len(count) > MOST_WORDS:
            odd = next(row for row in rows if every[row].lower() not in MISSING and number(every[row]) is None)
            if sum(value is None for value in values) * 10 < len(values):
                raise table.error(odd, f"column {name!r} holds {every[odd]!r} among numbers")
            raise DataError(
                f"column {name!r} has {len(count)} different words; leave it out with --set ignore={name}", table.file
            )
        return cls(name, sorted(count), 0.0, 1.0, gaps) if len(count) > 1 else cls(name, (), 0.0, 0.0, gaps)

    def __call__(self, table: Table) -> Tensor:
        """The columns of numbers that this column becomes, (N, 0 or more)."""
        cells = table.column(self.name, "columns")
        gone = [cell.lower() in MISSING for cell in cells]
        made = []
        if self.words:
            made += [[float(cell == word) for cell in cells] for word in self.words]
        elif self.scale:
            values = [self.mean if missing else number(cell) for cell, missing in zip(cells, gone)]
            for row, value in enumerate(values):
                if value is None:
                    raise table.error(row, f"column {self.name!r} holds {cells[row]!r}, the training rows hold numbers")
            made.append([(value - self.mean) / self.scale for value in values if value is not None])
        if self.gaps:
            made.append([float(missing) for missing in gone])
        return torch.tensor(made).T if made else torch.zeros(len(cells), 0)


def sample(goal: str) -> Table:
    """The embedded example: scikit-learn's breast cancer (classes) or diabetes (numbers)."""
    from sklearn.datasets import load_breast_cancer, load_diabetes

    raw = load_breast_cancer() if goal == "classes" else load_diabetes()
    name = "scikit-learn's breast cancer" if goal == "classes" else "scikit-learn's diabetes"
    answer = [raw.target_names[k] for k in raw.target] if goal == "classes" else [str(v) for v in raw.target]
    rows = tuple((*(repr(float(v)) for v in row), str(label)) for row, label in zip(raw.data, answer))
    columns = (*(str(column) for column in raw.feature_names), "target")
    return Table(name, "", columns, rows, tuple(range(1, len(rows) + 1)))


def build(setting: Setting, data: Data) -> nn.Module:
    """From the menu, or the user's own."""
    return chosen(table_menu(), setting, data)


TABLE: dict[str, Value] = {
    **FILES,
    **CELLS,
    "target": "target",
    "columns": "",
    "ignore": "",
    "model": "mlp",
    "width": 64,
    "dropout": 0.2,
    "lr": 3e-3,
    "weight_decay": 1e-4,
    "optimiser": "adamw",
    "schedule": "cosine",
    "batch": 32,
}


def task(name: str, goal: str, summary: str, score: str, more: Mapping[str, Value], **parts: Any) -> Task:
    """The same columns, with classes or with numbers to predict."""
    settings = {**TABLE, **more}
    return Task(
        name=name,
        summary=summary,
        score=score,
        scales={"tiny": {**settings, "epochs": 10}, "small": {**settings, "width": 128, "epochs": 60}},
        methods=around_input(radius=0.1, distance=1.0),
        load=lambda setting: load(setting, goal),
        build=build,
        derive=contents(),
        **parts,
    )


TASKS = (
    task(
        "table",
        "classes",
        "your own table, a column of classes to predict: --set train=FILE.csv",
        "accuracy",
        {"attack": 0.1, "attacked": 200},
        better="higher",
        evaluate=judge.classes,
        figures=judge.figures,
    ),
    task(
        "table-regression",
        "numbers",
        "your own table, a column of numbers to predict: --set train=FILE.csv",
        "rmse",
        {},
        better="lower",
        evaluate=judge.numbers,
    ),
)
