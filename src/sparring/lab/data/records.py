"""What readers hand out: plain arrays and lists, nothing lazy."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from .errors import DataError


@dataclass(frozen=True)
class Images:
    """Labelled images.

    Args:
        images: uint8, (N, H, W) or (N, C, H, W).
        labels: int64, (N,).
        classes: Names of the labels.
    """

    images: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: np.ndarray) -> "Images":
        """The examples at these positions."""
        return replace(self, images=self.images[index], labels=self.labels[index])


@dataclass(frozen=True)
class Texts:
    """Sentences or sentence pairs, with labels where they are public.

    Example:
        >>> texts = Texts(["good", "bad"], None, np.array([1, 0]), ("negative", "positive"))
        >>> len(texts), texts.take(np.array([1])).first
        (2, ['bad'])

    Args:
        first: The sentence, or the first of a pair.
        second: The second sentences, or None.
        labels: int64 (N,) classes or float64 (N,) scores; None where the publisher hides them.
        classes: Names of the labels; empty for scores.
    """

    first: list[str]
    second: list[str] | None
    labels: np.ndarray | None
    classes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.first)

    def take(self, index: np.ndarray) -> "Texts":
        """The examples at these positions."""
        return Texts(
            [self.first[i] for i in index],
            None if self.second is None else [self.second[i] for i in index],
            None if self.labels is None else self.labels[index],
            self.classes,
        )

    def keep(self, *classes: str) -> "Texts":
        """Only the examples of these classes, which become 0, 1, ... in this order.

        Example:
            >>> news = Texts(["a", "b", "c"], None, np.array([0, 1, 2]), ("World", "Sports", "Business"))
            >>> news.keep("World", "Business").labels.tolist()
            [0, 1]
        """
        if self.labels is None:
            raise DataError("these texts have no labels to choose by")
        for name in classes:
            if name not in self.classes:
                raise DataError(f"no class is called {name!r}; there are {', '.join(self.classes)}")
        order = {self.classes.index(name): new for new, name in enumerate(classes)}
        index = np.array([i for i, label in enumerate(self.labels.tolist()) if label in order], dtype=np.int64)
        part = self.take(index)
        assert part.labels is not None
        return replace(part, labels=np.array([order[i] for i in part.labels.tolist()], dtype=np.int64), classes=classes)


def alike(texts: Sequence[str]) -> list[list[int]]:
    """The positions of equal texts, in the order in which each is first met: what must not be divided.

    Example:
        >>> alike(["a", "b", "a"])
        [[0, 2], [1]]
    """
    groups: dict[str, list[int]] = {}
    for place, text in enumerate(texts):
        groups.setdefault(text, []).append(place)
    return list(groups.values())


def holdout(size: int, fraction: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Split `range(size)` at random into a training and a validation part; both come back sorted.

    Example:
        >>> train, valid = holdout(10_000, 0.15)
        >>> len(train), len(valid)
        (8500, 1500)

    Args:
        size: Number of examples.
        fraction: Share of the validation part, from 0 to 1.
        seed: The same seed gives the same split everywhere.
    """
    if not 0 <= fraction <= 1:
        raise ValueError(f"fraction is {fraction}; it must lie between 0 and 1")
    order = np.random.default_rng(seed).permutation(size)
    cut = round(size * fraction)
    return np.sort(order[cut:]), np.sort(order[:cut])
