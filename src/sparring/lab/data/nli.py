"""Natural language inference: SNLI, MultiNLI and ANLI in their jsonl, and the tab-separated SNLI samples."""

import json
from collections.abc import Iterable
from pathlib import Path

from .errors import DataError
from .files import Folder, as_folder
from .records import Texts
from .tables import class_of, integers, rows, some

CLASSES = ("entailment", "neutral", "contradiction")
MULTINLI = {"train": "train", "matched": "dev_matched", "mismatched": "dev_mismatched"}


def parse_jsonl(
    lines: Iterable[tuple[int, str]], keys: tuple[str, str, str], labels: tuple[str, ...], file: str = "jsonl"
) -> Texts:
    """Premise, hypothesis and label of each line; lines whose label is `-` (no agreement) are left out.

    Example:
        >>> lines = ['{"s": "A", "t": "B", "y": "neutral"}', '{"s": "A", "t": "C", "y": "-"}']
        >>> parse_jsonl(enumerate(lines, 1), ("s", "t", "y"), CLASSES)
        Texts(first=['A'], second=['B'], labels=array([1]), classes=('entailment', 'neutral', 'contradiction'))

    Args:
        lines: `(line number, text)`.
        keys: Names of premise, hypothesis and label.
        labels: The labels as the file spells them, in the order of `CLASSES`.
        file: Name for messages.
    """
    found: tuple[list[str], list[str], list[int]] = ([], [], [])
    for number, line in lines:
        if not line.strip():
            continue
        try:
            record: object = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"is not json ({error})", file, number) from error
        values = [v for key in keys if isinstance(record, dict) and isinstance(v := record.get(key), str)]
        if len(values) != len(keys):
            raise DataError(f"is not an object with the texts {', '.join(keys)}", file, number)
        if values[2] == "-":
            continue
        found[0].append(values[0])
        found[1].append(values[1])
        found[2].append(class_of(values[2], labels, file, number))
    return some(Texts(found[0], found[1], integers(found[2]), CLASSES), file)


def snli(split: str = "train", data: Folder | str | Path | None = None) -> Texts:
    """SNLI: 549,367 (train), 9,842 (dev) or 9,824 (test) pairs with an agreed label, from the native jsonl.

    Args:
        split: `"train"`, `"dev"` or `"test"`.
        data: The data folder; None for SPARRING_DATA.
    """
    _known("snli", split, ("train", "dev", "test"))
    name = f"nli/snli_1.0/snli_1.0_{split}.jsonl"
    return parse_jsonl(as_folder(data).lines(name), ("sentence1", "sentence2", "gold_label"), CLASSES, name)


def multinli(split: str = "train", data: Folder | str | Path | None = None) -> Texts:
    """MultiNLI: 392,702 (train), 9,815 (matched) or 9,832 (mismatched) pairs with an agreed label.

    Args:
        split: `"train"`, `"matched"` or `"mismatched"`.
        data: The data folder; None for SPARRING_DATA.
    """
    _known("multinli", split, tuple(MULTINLI))
    name = f"nli/multinli_1.0/multinli_1.0_{MULTINLI[split]}.jsonl"
    return parse_jsonl(as_folder(data).lines(name), ("sentence1", "sentence2", "gold_label"), CLASSES, name)


def anli(number: int, split: str = "train", data: Folder | str | Path | None = None) -> Texts:
    """ANLI, one of its three rounds.

    Args:
        number: The round, 1, 2 or 3.
        split: `"train"`, `"dev"` or `"test"`.
        data: The data folder; None for SPARRING_DATA.
    """
    _known("anli", split, ("train", "dev", "test"))
    if number not in (1, 2, 3):
        raise DataError(f"anli has no round {number}; use 1, 2 or 3")
    name = f"nli/anli_v1.0/R{number}/{split}.jsonl"
    return parse_jsonl(as_folder(data).lines(name), ("context", "hypothesis", "label"), ("e", "n", "c"), name)


def snli_plain(split: str = "dev", data: Folder | str | Path | None = None) -> Texts:
    """SNLI as tab-separated text: whole `dev` and `test` splits, lower-cased; `train` is 20,000 raw pairs.

    Args:
        split: `"train"` (`snli-train-20k/train.tsv`), `"dev"` or `"test"` (`snli/dev.txt`, `snli/test.txt`).
        data: The data folder; None for SPARRING_DATA.
    """
    _known("snli_plain", split, ("train", "dev", "test"))
    found: tuple[list[str], list[str], list[int]] = ([], [], [])
    sample = split == "train"
    name = "nli/snli-train-20k/train.tsv" if sample else f"nli/snli/{split}.txt"
    order = ("3", "1", "2") if sample else ("0", "1", "2")  # how each file spells entailment, neutral, contradiction
    for number, fields in rows(as_folder(data), name, 4 if sample else 3):
        first, second, label = (fields[2], fields[3], fields[1]) if sample else fields
        found[0].append(first)
        found[1].append(second)
        found[2].append(class_of(label, order, name, number))
    return some(Texts(found[0], found[1], integers(found[2]), CLASSES), name)


def _known(name: str, split: str, splits: tuple[str, ...]) -> None:
    if split not in splits:
        raise DataError(f"{name} has no split {split!r}; use one of {', '.join(splits)}")
