"""Texts as numbers in little memory: words are numbered as they are read, sentences of any length lie end to end."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from .vocabulary import PAD, UNK, Vocabulary


class Lexicon:
    """Numbers words in the order they are met; afterwards the frequent ones become a vocabulary.

    A corpus need not be kept as strings, nor read twice: 300 million words take 1.2 GB here.

    Example:
        >>> lexicon = Lexicon()
        >>> texts = [lexicon(["a", "b", "a"]), lexicon(["c", "b"])]
        >>> vocabulary, numbers = lexicon.vocabulary(texts, minimum=2)
        >>> vocabulary.words, numbers[texts[0]].tolist()
        (('<pad>', '<unk>', 'b'), [1, 2, 1])
    """

    def __init__(self) -> None:
        self.index: dict[str, int] = {}

    def __call__(self, words: Iterable[str]) -> np.ndarray:
        """The present numbers of words, int32; new words get new numbers."""
        index = self.index
        return np.fromiter((index.setdefault(word, len(index)) for word in words), dtype=np.int32)

    def vocabulary(
        self, texts: Iterable[np.ndarray], minimum: int = 1, extra: Sequence[str] = ()
    ) -> tuple[Vocabulary, np.ndarray]:
        """The words that stand in at least `minimum` of the texts, the most frequent first, ties in alphabetical order.

        Args:
            texts: What this lexicon numbered; most often the training part.
            minimum: Number of texts a word must stand in.
            extra: Words that are in whatever their count.

        Returns:
            The vocabulary, and for each number of the lexicon the word's number in it (1, `<unk>`, if it is not in).
        """
        if minimum < 1:
            raise ValueError(f"minimum is {minimum}; it must be at least 1")
        documents, count = np.zeros((2, len(self.index)), dtype=np.int64)
        for text in texts:
            found, often = np.unique(text, return_counts=True)
            documents[found] += 1
            count[found] += often
        words = list(self.index)
        head = (PAD, UNK, *dict.fromkeys(word for word in extra if word not in (PAD, UNK)))
        fixed = set(head)
        common = [i for i in np.flatnonzero(documents >= minimum).tolist() if words[i] not in fixed]
        common.sort(key=lambda i: (-count[i], words[i]))
        vocabulary = Vocabulary((*head, *(words[i] for i in common)))
        return vocabulary, np.array([vocabulary.index.get(word, 1) for word in words], dtype=np.int32)


class Ragged:
    """Sentences end to end in one tensor; any choice of them comes out as a padded batch.

    Example:
        >>> sentences = Ragged([np.array([5, 6, 7]), np.array([8]), np.array([], dtype=int)])
        >>> sentences(torch.tensor([1, 0])).tolist()
        [[8, 0, 0], [5, 6, 7]]
        >>> sentences(torch.tensor([2])).tolist()
        [[0]]

    Args:
        rows: Sentences as numbers. 0 is padding: it must not be a word.
    """

    def __init__(self, rows: Sequence[np.ndarray]) -> None:
        lengths = np.fromiter((len(row) for row in rows), dtype=np.int64, count=len(rows))
        self.ends = torch.from_numpy(lengths.cumsum())
        self.lengths = torch.from_numpy(lengths)
        flat = np.concatenate([np.asarray(row, dtype=np.int32) for row in rows] or [np.zeros(0, np.int32)])
        self.words = torch.from_numpy(flat)

    def __len__(self) -> int:
        return len(self.lengths)

    def __call__(self, index: Tensor) -> Tensor:
        """The sentences `index` (B,) as numbers (B, T), padded with 0 to the longest of them."""
        lengths = self.lengths[index]
        time = torch.arange(max(1, int(lengths.max()) if len(lengths) else 1))
        place = (self.ends[index] - lengths)[:, None] + time
        inside = time < lengths[:, None]
        if not len(self.words):
            return torch.zeros(inside.shape, dtype=torch.long)
        return self.words[place.clamp_max(len(self.words) - 1)].long().masked_fill_(~inside, 0)
