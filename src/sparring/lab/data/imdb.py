"""IMDB reviews (aclImdb v1.0), Elec, and the reviews of Blitzer et al. that stand in for Elec."""

import html
import re
from pathlib import Path

from .errors import DataError
from .files import Folder, as_folder
from .records import Texts
from .tables import integers

CLASSES = ("negative", "positive")
NAME = re.compile(r"aclImdb/(train|test)/(neg|pos|unsup)/(\d+)_(\d+)\.txt$")
WHOLE = {1: 50_000, 2: 25_000}
BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)


def imdb(
    split: str = "train", data: Folder | str | Path | None = None, unlabelled: bool = False, markup: bool = False
) -> Texts:
    """Film reviews: 12,500 negative, then 12,500 positive, each in the order of their numbers.

    Args:
        split: `"train"` or `"test"`.
        data: The data folder; None for SPARRING_DATA.
        unlabelled: The 50,000 reviews of `train/unsup` instead (no labels).
        markup: Keep `<br />` tags, which are replaced by a space otherwise.
    """
    if split not in ("train", "test") or (unlabelled and split == "test"):
        raise DataError(
            f"imdb has no {'unlabelled ' * unlabelled}split {split!r}; use 'train'{' or test' * (not unlabelled)}"
        )
    folders = ["unsup"] if unlabelled else ["neg", "pos"]
    found: list[tuple[int, int, str]] = []
    for name, raw in as_folder(data).walk(f"imdb/aclImdb/{split}"):
        match = NAME.search(name)
        if match is None or match[2] not in folders:
            continue
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"is not utf-8 text ({error.reason})", name) from error
        text = text if markup else " ".join(BREAK.sub(" ", text).split())
        if not text.strip():
            raise DataError("is an empty review; remove it", name)
        found.append((folders.index(match[2]), int(match[3]), text))
        if len(found) == WHOLE[len(folders)]:
            break  # every review there is: spares a pass over a second archive
    for index, kind in enumerate(folders):
        if not any(item[0] == index for item in found):
            hint = "; the published archive has 50,000 there, or --set unlabelled=0" * unlabelled
            raise DataError(f"imdb/aclImdb/{split}/{kind} holds no review{hint}")
    found.sort(key=lambda item: item[:2])
    labels = None if unlabelled else integers([item[0] for item in found])
    return Texts([item[2] for item in found], None, labels, () if unlabelled else CLASSES)


def electronics(data: Folder | str | Path | None = None) -> Texts:
    """Amazon reviews of electronics (Blitzer et al. 2007), 1,000 negative then 1,000 positive: a stand-in for Elec.

    Args:
        data: The data folder; None for SPARRING_DATA.
    """
    folder = as_folder(data)
    texts: list[str] = []
    labels: list[int] = []
    for label, kind in enumerate(CLASSES):
        name = f"elec/electronics/{kind}.review"
        for review in _reviews(folder, name):
            texts.append(review)
            labels.append(label)
    return Texts(texts, None, integers(labels), CLASSES)


def elec(split: str = "train", data: Folder | str | Path | None = None, unlabelled: bool = False) -> Texts:
    """Elec as Johnson and Zhang publish it (2015): tokens with spaces between, one review a line, classes 1 and 2 beside it.

    Args:
        split: `"train"` (25,000 reviews) or `"test"`.
        data: The data folder; None for SPARRING_DATA.
        unlabelled: The reviews of `elec-25k-unlab00` and `01` instead (no labels).
    """
    if split not in ("train", "test") or (unlabelled and split == "test"):
        raise DataError(f"elec has no {'unlabelled ' * unlabelled}split {split!r}; use 'train' or 'test'")
    folder = as_folder(data)
    if unlabelled:
        return Texts([t for k in "01" for t in _token_lines(folder, f"elec/elec-25k-unlab0{k}.txt.tok")], None, None)
    stem = "elec/elec-25k-train" if split == "train" else "elec/elec-test"
    texts, labels = _token_lines(folder, f"{stem}.txt.tok"), []
    for number, line in folder.lines(f"{stem}.cat"):
        if line.strip() not in ("1", "2"):
            raise DataError(f"has the class {line.strip()!r}; a class is 1 or 2", f"{stem}.cat", number)
        labels.append(int(line) - 1)
    if len(labels) != len(texts):
        raise DataError(f"has {len(labels):,} classes for {len(texts):,} reviews", f"{stem}.cat")
    return Texts(texts, None, integers(labels), ("1", "2"))


def _token_lines(folder: Folder, name: str) -> list[str]:
    texts = []
    for number, line in folder.lines(name):
        if not line.strip():
            raise DataError("holds an empty review; remove it here and its class", name, number)
        texts.append(line)
    return texts


def _reviews(folder: Folder, name: str) -> list[str]:
    reviews: list[str] = []
    inside: list[str] | None = None
    opened = 0
    for number, line in folder.lines(name, encoding="latin-1"):
        tag = line.strip()
        if tag == "<review_text>":
            if inside is not None:
                raise DataError(f"opens a review before the one of line {opened} ends", name, number)
            inside, opened = [], number
        elif tag == "</review_text>":
            if inside is None:
                raise DataError("ends a review that was not opened", name, number)
            reviews.append(html.unescape(" ".join(" ".join(inside).split())))
            if not reviews[-1]:
                raise DataError("holds an empty review; remove it", name, opened)
            inside = None
        elif inside is not None:
            inside.append(line)
    if inside is not None:
        raise DataError("cut short: the last review does not end", name, opened)
    if not reviews:
        raise DataError("holds no review", name)
    return reviews
