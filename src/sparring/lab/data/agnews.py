"""AG News in its native csv: class number, title, description."""

import csv
import html
import re
from collections.abc import Iterator
from pathlib import Path

from .errors import DataError
from .files import Folder, as_folder
from .records import Texts
from .tables import class_of, integers, rows, some

CLASSES = ("World", "Sports", "Business", "Sci/Tech")
BARE_ENTITY = re.compile(r"(?<!&)#(\d{2,4});")  # the publisher lost the ampersands of "&#39;"
LINE_END = re.compile(r"\\n(?![a-z])|\\")  # the readme says "\n"; the files also have a bare "\" before the next word
LONGEST = 1 << 17


def ag_news(
    split: str = "train", data: Folder | str | Path | None = None, title: bool = True, tidy: bool = True
) -> Texts:
    """News in four classes: 120,000 (train) or 7,600 (test).

    The attention paper keeps World against Business: `ag_news(...).keep("World", "Business")`.

    Args:
        split: `"train"` or `"test"`; `"sample"` reads `ag_news/train-10k-description.tsv`, 10,001 descriptions of the
            training set with their class names.
        data: The data folder; None for SPARRING_DATA.
        title: Put the title before the description.
        tidy: Undo what the file does to text: backslashes that stand for line ends, and HTML entities.
    """
    folder = as_folder(data)
    if split == "sample":
        name = "ag_news/train-10k-description.tsv"
        found = [(number, class_of(f[1], CLASSES, name, number), "", f[0]) for number, f in rows(folder, name, 2)]
    elif split in ("train", "test"):
        name = f"ag_news/ag_news_csv/{split}.csv"
        found = list(_records(folder, name))
    else:
        raise DataError(f"ag_news has no split {split!r}; use 'train', 'test' or 'sample'")
    texts = [f"{head} {body}" if title and head else body for _, _, head, body in found]
    labels = integers([label for _, label, _, _ in found])
    return some(Texts([tidied(text) for text in texts] if tidy else texts, None, labels, CLASSES), name)


def tidied(text: str) -> str:
    """Text as it read before it was put into the csv, on one line.

    Example:
        >>> tidied("It #39;s\\\\over &lt;b&gt;now&lt;/b&gt;\\\\$5")
        "It's over <b>now</b> $5"
    """
    text = re.sub(r" ?" + BARE_ENTITY.pattern, r"&#\1;", text)
    return " ".join(html.unescape(LINE_END.sub(" ", text)).split())


def _records(folder: Folder, name: str) -> Iterator[tuple[int, int, str, str]]:
    csv.field_size_limit(max(LONGEST, csv.field_size_limit()))
    reader = csv.reader((line + "\n" for _, line in folder.lines(name)), strict=True)
    start = 1
    while True:
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise DataError(f"is not valid csv ({error})", name, start) from error
        if len(fields) != 3:
            raise DataError(f"has {len(fields)} fields, expected class, title and description", name, start)
        label = class_of(fields[0], ("1", "2", "3", "4"), name, start)
        yield start, label, fields[1].removesuffix("\n"), fields[2].removesuffix("\n")
        start = reader.line_num + 1
