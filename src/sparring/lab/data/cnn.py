"""CNN news questions: a passage and a sentence with a hole, both with people and places hidden behind @entity names."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .errors import DataError
from .files import Folder, as_folder

ENTITY = re.compile(r"@entity\d+")
SPLITS = {"train": "training", "valid": "validation", "test": "test"}


@dataclass(frozen=True)
class Cloze:
    """One question file.

    Args:
        url: Where the article was.
        passage: Its tokens.
        question: Tokens with one `@placeholder`.
        answer: The `@entity...` that fills it.
        entities: What each `@entity...` stands for.
    """

    url: str
    passage: tuple[str, ...]
    question: tuple[str, ...]
    answer: str
    entities: dict[str, str]

    def candidates(self) -> tuple[str, ...]:
        """The entities of the passage in order of appearance: the answers worth scoring."""
        return tuple(dict.fromkeys(token for token in self.passage if ENTITY.fullmatch(token)))


def parse_question(raw: bytes, file: str = "question") -> Cloze:
    """Read one question file: url, passage, question, answer and entities, with empty lines between.

    Example:
        >>> text = "http://x\\n\\n@entity1 met @entity2\\n\\n@placeholder met\\n\\n@entity1\\n\\n@entity1:Ann\\n@entity2:Bob\\n"
        >>> parse_question(text.encode()).candidates()
        ('@entity1', '@entity2')

    Args:
        raw: The bytes of the file.
        file: Name for messages.
    """
    try:
        blocks = raw.decode("utf-8").replace("\r\n", "\n").split("\n\n")
    except UnicodeDecodeError as error:
        raise DataError(f"is not utf-8 text ({error.reason})", file) from error
    if len(blocks) != 5:
        raise DataError(f"has {len(blocks)} parts, expected url, passage, question, answer and entities", file)
    url, passage, question, answer, names = (block.strip("\n") for block in blocks)
    if question.split().count("@placeholder") != 1:
        raise DataError("has a question without exactly one @placeholder", file)
    entities: dict[str, str] = {}
    for number, line in enumerate(names.split("\n"), 1 + sum(block.count("\n") + 2 for block in blocks[:4])):
        name, colon, value = line.partition(":")
        if not colon or not ENTITY.fullmatch(name):
            raise DataError(f"has {line[:40]!r} where '@entity0:name' belongs", file, number)
        entities[name] = value
    if answer not in entities:
        raise DataError(f"has the answer {answer[:40]!r}, which is not among its entities", file)
    return Cloze(url, tuple(passage.split()), tuple(question.split()), answer, entities)


def cnn(split: str = "train", data: Folder | str | Path | None = None) -> Iterator[Cloze]:
    """Yield the questions of a split: 380,298 (train), 3,924 (valid) or 3,198 (test); one pass over the archive.

    Args:
        split: `"train"`, `"valid"` or `"test"`.
        data: The data folder; None for SPARRING_DATA.
    """
    if split not in SPLITS:
        raise DataError(f"cnn has no split {split!r}; use 'train', 'valid' or 'test'")
    for name, raw in as_folder(data).walk(f"cnn/cnn/questions/{SPLITS[split]}"):
        if name.endswith(".question"):
            yield parse_question(raw, name)
