"""Stanford Sentiment Treebank: labelled trees, five classes or two, whole sentences or every phrase."""

from dataclasses import dataclass
from pathlib import Path

from .errors import DataError
from .files import Folder, as_folder
from .records import Texts
from .tables import integers

FIVE = ("very negative", "negative", "neutral", "positive", "very positive")
TWO = ("negative", "positive")


@dataclass(frozen=True)
class Tree:
    """One tree as its nodes in the order their brackets open.

    Args:
        words: The sentence.
        nodes: `(label, first word, one past the last word)`; the first is the whole sentence.
    """

    words: tuple[str, ...]
    nodes: tuple[tuple[int, int, int], ...]


def parse_tree(text: str, file: str = "tree", line: int | None = None) -> Tree:
    """Read one bracketed tree.

    Example:
        >>> parse_tree("(3 (2 It) (4 works))")
        Tree(words=('It', 'works'), nodes=((3, 0, 2), (2, 0, 1), (4, 1, 2)))

    Args:
        text: One line of a treebank file.
        file: Name for messages.
        line: Line number for messages.
    """
    words: list[str] = []
    nodes: list[tuple[int, int, int]] = []
    waiting: list[int] = []  # nodes whose bracket is open
    tokens = [token for token in text.replace("(", " ( ").replace(")", " ) ").split(" ") if token]
    position = 0
    while position < len(tokens):
        token = tokens[position]
        if token == "(":
            label = tokens[position + 1] if position + 1 < len(tokens) else ""
            if label not in ("0", "1", "2", "3", "4"):
                raise DataError(f"has the label {label[:20]!r}, expected 0 to 4", file, line)
            if nodes and not waiting:
                raise DataError("has text after the end of its tree", file, line)
            waiting.append(len(nodes))
            nodes.append((int(label), len(words), -1))
            position += 2
            continue
        if not waiting:
            raise DataError(f"has {token[:20]!r} outside of its tree", file, line)
        if token == ")":
            label_, start, _ = nodes[waiting[-1]]
            if start == len(words):
                raise DataError("has a bracket without words", file, line)
            nodes[waiting.pop()] = (label_, start, len(words))
        else:
            words.append(token)
        position += 1
    if waiting or not nodes:
        raise DataError(f"is a broken tree ({len(waiting)} brackets are not closed)", file, line)
    return Tree(tuple(words), tuple(nodes))


def trees(split: str = "train", data: Folder | str | Path | None = None) -> list[Tree]:
    """Every tree of a split: 8,544 (train), 1,101 (dev) or 2,210 (test).

    Args:
        split: `"train"`, `"dev"` or `"test"`.
        data: The data folder; None for SPARRING_DATA.
    """
    if split not in ("train", "dev", "test"):
        raise DataError(f"sst has no split {split!r}; use 'train', 'dev' or 'test'")
    name = f"sst/trees/{split}.txt"
    found = [parse_tree(line, name, number) for number, line in as_folder(data).lines(name) if line.strip()]
    if not found:
        raise DataError("holds no tree", name)
    return found


def sst(
    split: str = "train", data: Folder | str | Path | None = None, classes: int = 5, phrases: bool = False
) -> Texts:
    """SST as texts whose words are separated by single spaces (the treebank is tokenised: split at `" "`).

    With two classes neutral texts are left out, which leaves 6,920 / 872 / 1,821 sentences.

    Args:
        split: `"train"`, `"dev"` or `"test"`.
        data: The data folder; None for SPARRING_DATA.
        classes: 5, or 2 for negative against positive.
        phrases: Every phrase of a tree instead of the sentence alone; usual for training only.
    """
    if classes not in (2, 5):
        raise DataError(f"sst has 2 or 5 classes, not {classes}")
    first: list[str] = []
    labels: list[int] = []
    for tree in trees(split, data):
        for label, start, end in tree.nodes if phrases else tree.nodes[:1]:
            if classes == 2:
                if label == 2:
                    continue
                label = int(label > 2)
            first.append(" ".join(tree.words[start:end]))
            labels.append(label)
    return Texts(first, None, integers(labels), FIVE if classes == 5 else TWO)
