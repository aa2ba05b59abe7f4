"""`text`: one or two texts and a class, from a csv, tsv or jsonl file."""

from typing import Any

import torch
from torch import nn

from ...data.batches import pad
from ...data.own.tables import Table
from ...data.preparing import Preparation
from ...data.vocabulary import Vocabulary
from ...models.birnn import PairSequence, SingleSequence
from ...task import Data, Setting, Split, Task, Value
from ..attention.made_up import made_up
from . import judge
from .methods import IN_TEXT
from .models import Build, chosen
from .rows import CELLS, FILES, PARTS, Source, contents, divide, tables, unchanged

SAMPLE = "generated sentences of neutral and loaded words"


def load(setting: Setting) -> Data:
    """Texts as padded word numbers; the words are those of the training rows."""
    if not setting["train"]:
        return sample(setting)
    unchanged(setting)
    found = tables(setting)
    sources = {part: source(table, setting) for part, table in found.items()}
    division = divide(sources, setting)
    prepare = Preparation(longest=setting["longest"])
    columns = [name for name in (setting["text"], setting["text2"]) if name]
    words = {
        part: [prepare.all(table.column(name, key)) for name, key in zip(columns, ("text", "text2"))]
        for part, table in found.items()
    }
    parts = {}
    for part, (of, rows) in division.rows.items():
        labels = [division.classes.index(sources[of].labels[row]) for row in rows]
        parts[part] = ([[texts[row] for row in rows] for texts in words[of]], labels)
    return data(parts, division.classes, division.record, setting)


def source(table: Table, setting: Setting) -> Source:
    """The labels of a table, its text columns looked up on the way."""
    for name, key in ((setting["text"], "text"), (setting["text2"], "text2")):
        if name:
            table.place(name, key)
    return Source(table.file, table.column(setting["label"], "label"), table.error, table.encoding)


def trimmed(inputs: Any, targets: Any) -> tuple[Any, Any]:
    """A batch without the columns in which every text is padding.

    >>> trimmed(torch.tensor([[5, 0, 0], [7, 2, 0]]), None)[0].tolist()
    [[5, 0], [7, 2]]
    """
    if isinstance(inputs, tuple):
        return tuple(trimmed(ids, None)[0] for ids in inputs), targets
    return inputs[:, : max(1, int((inputs != 0).sum(1).max()))], targets


def sample(setting: Setting) -> Data:
    """The embedded example: generated sentences, labelled as such."""
    parts: dict[str, Any] = {}
    for seed, (part, count) in enumerate(zip(PARTS, (300, 100, 200))):
        texts, labels = made_up(min(count, setting["examples"] or count), seed)
        parts[part] = ([texts], labels)
    record = {"sample": SAMPLE, "splits": {part: {"count": len(labels)} for part, (_, labels) in parts.items()}}
    return data(parts, ("negative", "positive"), record, setting)


def data(parts: dict[str, Any], classes: tuple[str, ...], record: dict[str, Any], setting: Setting) -> Data:
    """Word numbers and class numbers of every part; an empty text is one unknown word."""
    vocabulary = Vocabulary.build(
        (words for texts in parts["train"][0] for words in texts), setting["seen"], setting["vocabulary"] or None
    )
    splits: list[Split] = []
    for part, (columns, labels) in parts.items():
        ids = tuple(pad([vocabulary.encode(words) or [vocabulary.unk] for words in texts])[0] for texts in columns)
        kind = judge.Final if part == "test" else Split
        splits.append(kind(ids if len(ids) > 1 else ids[0], torch.tensor(labels), trimmed))
    record = {**record, "words": len(vocabulary)}
    train, validation, test = splits
    return Data(train, validation, test, extra={"classes": classes, "vocabulary": vocabulary}, record=record)


def reader(encoder: Any) -> Build:
    """A network with attention over one text, or over the first asked by the second."""

    def build(setting: Setting, data: Data) -> nn.Module:
        network = PairSequence if isinstance(data.train.inputs, tuple) else SingleSequence
        size = (len(data.extra["vocabulary"]), setting["size"], setting["features"], len(data.extra["classes"]))
        return network(*size, encoder=encoder)

    return build


MENU = {name: reader(name) for name in ("lstm", "gru", "cnn")}


def build(setting: Setting, data: Data) -> nn.Module:
    """From the menu, or the user's own."""
    return chosen(MENU, setting, data)


TEXT: dict[str, Value] = {
    **FILES,
    **CELLS,
    "text": "text",
    "text2": "",
    "label": "label",
    "model": "lstm",
    "longest": 100,
    "vocabulary": 20_000,
    "seen": 1,
    "optimiser": "amsgrad",
    "lr": 2e-3,
    "weight_decay": 1e-5,
    "batch": 32,
    "attack": 0.5,
    "attacked": 100,
}
SCALES: dict[str, dict[str, Value]] = {
    "tiny": {**TEXT, "size": 32, "features": 32, "epochs": 8, "lr": 5e-3},
    "small": {**TEXT, "size": 100, "features": 128, "epochs": 10, "patience": 3, "longest": 200, "attacked": 500},
}

TASKS = (
    Task(
        name="text",
        summary="your own sentences or pairs of them, with classes: --set train=FILE.csv",
        score="accuracy",
        better="higher",
        scales=SCALES,
        methods=IN_TEXT,
        load=load,
        build=build,
        evaluate=judge.classes,
        figures=judge.figures,
        derive=contents(),
    ),
)
