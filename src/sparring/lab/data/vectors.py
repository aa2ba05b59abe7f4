"""Word vectors in text form, as GloVe and fastText publish them."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .errors import DataError, MissingData
from .files import Folder, as_folder, missing
from .vocabulary import Vocabulary


@dataclass(frozen=True)
class Vectors:
    """Words and their vectors.

    Args:
        words: In the order of the file.
        values: float32, (words, dimensions).
    """

    words: list[str]
    values: np.ndarray

    def embedding(self, vocabulary: Vocabulary, scale: float = 0.1, seed: int = 0) -> tuple[Tensor, float]:
        """An embedding matrix for a vocabulary, and the share of its words that have a vector here.

        Words without one are drawn from N(0, scale^2); padding is zero.
        """
        row = {word: i for i, word in enumerate(self.words)}
        generator = torch.Generator().manual_seed(seed)
        matrix = torch.randn(len(vocabulary), self.values.shape[1], generator=generator) * scale
        matrix[vocabulary.pad] = 0.0
        known = [(i, row[word]) for i, word in enumerate(vocabulary.words) if word in row]
        if known:
            here, there = (list(side) for side in zip(*known, strict=True))
            matrix[here] = torch.from_numpy(self.values[there])
        return matrix, len(known) / max(1, len(vocabulary) - 2)


def parse_vectors(
    lines: Iterable[tuple[int, str]],
    file: str = "vectors",
    words: Collection[str] | None = None,
    limit: int | None = None,
) -> Vectors:
    """Read `word number number ...` lines; a first line of two integers (fastText's header) is checked and skipped.

    Example:
        >>> parse_vectors(enumerate(["2 3", "cat 1 2 3", "dog 4 5 6"], 1)).words
        ['cat', 'dog']
        >>> parse_vectors(enumerate(["cat 1 2 3", "dog 4 5"], 1), "tiny.vec")
        Traceback (most recent call last):
        ...
        sparring.lab.data.errors.DataError: tiny.vec, line 2: has 2 numbers, the lines before it have 3

    Args:
        lines: `(line number, text)`.
        file: Name for messages.
        words: Keep only these words.
        limit: Read at most this many vectors.
    """
    kept: list[str] = []
    rows: list[np.ndarray] = []
    width = promised = None
    seen = 0
    for number, line in lines:
        fields = line.rstrip(" ").split(" ")
        if number == 1 and len(fields) == 2 and fields[0].isdecimal() and fields[1].isdecimal():
            promised, width = int(fields[0]), int(fields[1])
            continue
        if limit is not None and seen >= limit:
            break
        if width is None:
            width = len(fields) - 1
            if width < 1:
                raise DataError("has a word without numbers", file, number)
        word, numbers = " ".join(fields[:-width]), fields[-width:]
        if len(fields) <= width or not word:
            raise DataError(f"has {len(fields) - 1} numbers, the lines before it have {width}", file, number)
        seen += 1
        if words is not None and word not in words:
            continue
        try:
            row = np.array(numbers, dtype=np.float64).astype(np.float32)
        except (ValueError, OverflowError):
            raise DataError(f"has something that is not a number among its {width} numbers", file, number) from None
        if not np.isfinite(row).all():
            raise DataError("has a number that is not finite", file, number)
        kept.append(word)
        rows.append(row)
    if not seen:
        raise DataError("holds no vector", file)
    if promised is not None and limit is None and promised != seen:
        raise DataError(f"cut short: holds {seen:,} vectors, its header promises {promised:,}", file)
    return Vectors(kept, np.stack(rows) if rows else np.zeros((0, width or 0), dtype=np.float32))


def vectors(
    name: str,
    data: Folder | str | Path | None = None,
    words: Collection[str] | None = None,
    limit: int | None = None,
) -> Vectors:
    """Word vectors from a logical file such as `glove/glove.6B.100d.txt`.

    Args:
        name: The logical file.
        data: The data folder; None for SPARRING_DATA.
        words: Keep only these words, which saves memory.
        limit: Read at most this many vectors from the top.
    """
    folder = as_folder(data)
    if folder.find(name) is None:
        raise MissingData(
            f"{missing(name, folder.root)}. --set vectors=FILE takes other word vectors, --set vectors= none"
        )
    return parse_vectors(folder.lines(name), name, words, limit)
