"""Words and their numbers."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

PAD, UNK = "<pad>", "<unk>"


@dataclass(frozen=True)
class Vocabulary:
    """A list of words, `<pad>` first and `<unk>` second, and the way between words and numbers.

    Example:
        >>> words = Vocabulary.build([["a", "b", "a"], ["c"]], minimum=1)
        >>> words.words
        ('<pad>', '<unk>', 'a', 'b', 'c')
        >>> words.encode(["a", "z"]), words.decode([2, 1, 0])
        ([2, 1], ['a', '<unk>'])

    Args:
        words: Distinct words that start with `<pad>` and `<unk>`.
    """

    words: tuple[str, ...]
    index: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.words[:2] != (PAD, UNK):
            raise ValueError(f"words start with {self.words[:2]}; the first two must be {PAD!r} and {UNK!r}")
        object.__setattr__(self, "index", {word: i for i, word in enumerate(self.words)})
        if len(self.index) != len(self.words):
            twice = next(word for word, count in Counter(self.words).items() if count > 1)
            raise ValueError(f"the word {twice!r} is listed twice; words must be distinct")

    def __len__(self) -> int:
        return len(self.words)

    @property
    def pad(self) -> int:
        """The number of `<pad>`."""
        return 0

    @property
    def unk(self) -> int:
        """The number of `<unk>`."""
        return 1

    @classmethod
    def build(
        cls,
        sentences: Iterable[Sequence[str]],
        minimum: int = 1,
        size: int | None = None,
        extra: Sequence[str] = (),
    ) -> "Vocabulary":
        """Words of the training sentences, the most frequent first, ties in alphabetical order.

        Args:
            sentences: Sequences of words.
            minimum: Leave out words seen fewer times.
            size: Keep at most this many words, `<pad>`, `<unk>` and `extra` not counted.
            extra: Words to put in whatever their count, such as `<eos>`.
        """
        if minimum < 1:
            raise ValueError(f"minimum is {minimum}; it must be at least 1")
        if size is not None and size < 0:
            raise ValueError(f"size is {size}; it must not be negative")
        count = Counter(word for sentence in sentences for word in sentence)
        head = (PAD, UNK, *dict.fromkeys(word for word in extra if word not in (PAD, UNK)))
        for word in head:
            count.pop(word, None)
        common = sorted((w for w, n in count.items() if n >= minimum), key=lambda w: (-count[w], w))
        return cls((*head, *common[:size]))

    def encode(self, words: Iterable[str]) -> list[int]:
        """Numbers of words; unknown ones become `<unk>`."""
        return [self.index.get(word, 1) for word in words]

    def decode(self, numbers: Iterable[int]) -> list[str]:
        """Words of numbers; padding is left out."""
        return [self.words[i] for i in numbers if i != 0]
