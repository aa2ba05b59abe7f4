"""GLUE tasks in their native tsv files: CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI, RTE."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .errors import DataError
from .files import Folder, as_folder
from .records import Texts
from .tables import class_of, headed, integers, rows, some

ENTAILMENT = ("entailment", "not_entailment")
INFERENCE = ("entailment", "neutral", "contradiction")
MATCHED = ("train", "dev_matched", "dev_mismatched", "test_matched", "test_mismatched")


@dataclass(frozen=True)
class Task:
    """The columns of one task: sentence, second sentence (or ""), label; and the classes, empty for a score."""

    folder: str
    first: str
    second: str
    label: str
    classes: tuple[str, ...]
    labels: tuple[str, ...] = ("0", "1")  # as they stand in the file, in the order of the classes
    splits: tuple[str, ...] = ("train", "dev", "test")
    short: int = 0  # how many rows of the published file may end early; they are passed over


TASKS = {
    "cola": Task("CoLA", "sentence", "", "label", ("unacceptable", "acceptable")),
    "sst-2": Task("SST-2", "sentence", "", "label", ("negative", "positive")),
    "mrpc": Task("MRPC", "#1 String", "#2 String", "Quality", ("different", "paraphrase")),
    "qqp": Task("QQP", "question1", "question2", "is_duplicate", ("different", "duplicate"), short=10),
    "mnli": Task("MNLI", "sentence1", "sentence2", "gold_label", INFERENCE, INFERENCE, MATCHED),
    "rte": Task("RTE", "sentence1", "sentence2", "label", ENTAILMENT, ENTAILMENT),
    "qnli": Task("QNLI", "question", "sentence", "label", ENTAILMENT, ENTAILMENT),
    "sts-b": Task("STS-B", "sentence1", "sentence2", "score", ()),
}


def glue(task: str, split: str = "train", data: Folder | str | Path | None = None) -> Texts:
    """One split of a GLUE task. The labels of the test splits are hidden, so they are None there (but not for MRPC).

    MRPC is read from `MRPC/{train,dev,test}.tsv` where they exist; `train` and `test` also from Microsoft's
    `msr_paraphrase_{train,test}.txt`, whose training file still contains the development rows; the task `mrpc` of the lab
    leaves them out.

    Args:
        task: `"cola"`, `"sst-2"`, `"mrpc"`, `"sts-b"`, `"qqp"`, `"mnli"`, `"qnli"` or `"rte"`.
        split: `"train"`, `"dev"` or `"test"`; MNLI has `"dev_matched"`, `"dev_mismatched"` and such tests.
        data: The data folder; None for SPARRING_DATA.
    """
    if task not in TASKS:
        raise DataError(f"glue has no task {task!r}; use one of {', '.join(TASKS)}")
    folder, shape = as_folder(data), TASKS[task]
    if split not in shape.splits:
        raise DataError(f"{task} has no split {split!r}; use one of {', '.join(shape.splits)}")
    name, hidden = f"glue/{shape.folder}/{split}.tsv", split.startswith("test")
    if task == "mrpc" and split != "dev":
        microsoft = f"glue/MRPC/msr_paraphrase_{split}.txt"
        if hidden or folder.find(name) is None:
            name, hidden = microsoft, False
    wanted = [column for column in (shape.first, shape.second, "" if hidden else shape.label) if column]
    lines: Iterator[tuple[int, list[str]]]
    if task == "cola" and not hidden:
        lines = ((number, [fields[3], fields[1]]) for number, fields in rows(folder, name, 4))
    else:
        lines = headed(folder, name, *wanted, short=shape.short)
    first: list[str] = []
    second: list[str] = []
    labels: list[float] = []
    for number, fields in lines:
        first.append(fields[0].strip())
        if shape.second:
            second.append(fields[1].strip())
        if not hidden:
            labels.append(_label(fields[-1], shape, name, number))
    values = integers([int(v) for v in labels]) if shape.classes else np.array(labels, dtype=np.float64)
    return some(Texts(first, second if shape.second else None, None if hidden else values, shape.classes), name)


def _label(text: str, shape: Task, file: str, line: int) -> float:
    if shape.classes:
        return class_of(text, shape.labels, file, line)
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if not 0 <= score <= 5:
        raise DataError(f"has the score {text[:40]!r}, expected a number from 0 to 5", file, line)
    return score
