"""20 Newsgroups by date: one folder a group, one message a file, with the parts that give the group away removable."""

import re
from collections.abc import Collection
from pathlib import Path

from .errors import DataError
from .files import Folder, as_folder
from .records import Texts
from .tables import integers

QUOTED = re.compile(r"(writes in|writes:|wrote:|says:|said:|^In article|^Quoted from|^\||^>)")
PARTS = ("headers", "footers", "quotes")


def without_headers(text: str) -> str:
    """The message after its first empty line.

    Example:
        >>> without_headers("From: me\\nSubject: hockey\\n\\nGo!")
        'Go!'
    """
    return text.partition("\n\n")[2]


def without_quotes(text: str) -> str:
    """The message without lines that quote, or announce a quote.

    Example:
        >>> without_quotes("you wrote:\\n> no\\nYes.")
        'Yes.'
    """
    return "\n".join(line for line in text.split("\n") if not QUOTED.search(line))


def without_footers(text: str) -> str:
    """The message without its last block, if a blank or dashed line sets it off: most often a signature.

    Example:
        >>> without_footers("Go!\\n\\n--\\nMe")
        'Go!\\n'
    """
    lines = text.strip().split("\n")
    for number in range(len(lines) - 1, -1, -1):
        if lines[number].strip().strip("-") == "":
            return "\n".join(lines[:number]) if number > 0 else text
    return text


def newsgroups(
    split: str = "train",
    data: Folder | str | Path | None = None,
    groups: tuple[str, ...] = (),
    remove: Collection[str] = (),
) -> Texts:
    """20 Newsgroups: 11,314 (train) or 7,532 (test) messages, by group and then by number.

    The attention paper uses `groups=("rec.sport.baseball", "rec.sport.hockey")`.

    Args:
        split: `"train"` or `"test"`.
        data: The data folder; None for SPARRING_DATA.
        groups: Only these groups, numbered in this order; all, in alphabetical order, if empty.
        remove: Any of `"headers"`, `"footers"`, `"quotes"`.
    """
    if split not in ("train", "test"):
        raise DataError(f"newsgroups has no split {split!r}; use 'train' or 'test'")
    for part in remove:
        if part not in PARTS:
            raise DataError(f"remove has {part!r}; use any of {', '.join(PARTS)}")
    found: dict[str, list[tuple[str, str]]] = {}
    for name, raw in as_folder(data).walk(f"20news/20news-bydate-{split}"):
        _, _, *rest = name.split("/")
        if len(rest) == 2:
            found.setdefault(rest[0], []).append((rest[1], raw.decode("latin-1").replace("\r\n", "\n")))
    classes = groups or tuple(sorted(found))
    texts: list[str] = []
    labels: list[int] = []
    for label, group in enumerate(classes):
        if group not in found:
            raise DataError(f"20news/20news-bydate-{split} has no group {group!r}; it has {', '.join(sorted(found))}")
        for _, text in sorted(found[group], key=lambda item: (len(item[0]), item[0])):
            if "headers" in remove:
                text = without_headers(text)
            if "footers" in remove:
                text = without_footers(text)
            if "quotes" in remove:
                text = without_quotes(text)
            texts.append(text)
            labels.append(label)
    return Texts(texts, None, integers(labels), classes)
