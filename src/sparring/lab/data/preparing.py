"""From texts to sequences of words, with the attention paper's preparation as options.

The paper (section V-A) tokenises with spaCy, lower-cases, and writes every word with a digit as `qq`; words below a count
become `<unk>` in the vocabulary. Our tokeniser is a short regular expression; pass `tokenise=` for another, such as
`lambda text: [token.text for token in spacy.blank("en")(text)]`.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

WORD = re.compile(
    r"<\w+>|@\w+"  # <unk>, @entity1
    r"|n't\b|(?:(?!n't\b)\w)+(?=n't\b)"  # did + n't
    r"|'(?:s|re|ve|ll|d|m)\b"  # it + 's
    r"|\w+(?:[-.,]\w+)*"  # well-known, 3.14, 1,000, U.S
    r"|\.{2,}|[^\w\s]",
    re.IGNORECASE,
)
DIGIT = re.compile(r"\d")


def words(text: str) -> list[str]:
    """Split English text into words and marks.

    Example:
        >>> words("It didn't cost $1,000 -- it's well-known.")
        ['It', 'did', "n't", 'cost', '$', '1,000', '-', '-', 'it', "'s", 'well-known', '.']
    """
    return WORD.findall(text)


def spaces(text: str) -> list[str]:
    """Split text that is tokenised already at single spaces, and only there.

    Example:
        >>> spaces("8 1\\\\/2 is fine")
        ['8', '1\\\\/2', 'is', 'fine']
    """
    return [token for token in text.split(" ") if token]


@dataclass(frozen=True)
class Preparation:
    """How texts become words; the defaults are the attention paper's.

    Example:
        >>> Preparation()("Room 101 is HERE")
        ['room', 'qq', 'is', 'here']

    Args:
        tokenise: Text to words.
        lower: Lower-case them.
        number: What a word with a digit becomes; None leaves it.
        longest: Cut longer texts after this many words; None never cuts.
    """

    tokenise: Callable[[str], list[str]] = words
    lower: bool = True
    number: str | None = "qq"
    longest: int | None = None

    def __call__(self, text: str) -> list[str]:
        tokens = self.tokenise(text.lower() if self.lower else text)
        if self.number is not None:
            # Names of entities carry digits that are not numbers.
            tokens = [t if t.startswith("@") or not DIGIT.search(t) else self.number for t in tokens]
        return tokens[: self.longest]

    def all(self, texts: Iterable[str]) -> list[list[str]]:
        """Every text."""
        return [self(text) for text in texts]


def between(sentences: list[list[str]], shortest: int = 1, longest: int | None = None) -> list[int]:
    """Positions of the sentences whose length lies between two bounds, both included.

    Example:
        >>> between([["a"], [], ["a", "b", "c"]], 1, 2)
        [0]
    """
    return [i for i, s in enumerate(sentences) if shortest <= len(s) and (longest is None or len(s) <= longest)]
