"""Padded batches of text in a seeded order, and the columns a language model is trained on."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor


def pad(sentences: Sequence[Sequence[int]], value: int = 0, length: int | None = None) -> tuple[Tensor, Tensor]:
    """Stack sentences of different lengths; returns numbers and what is valid, both (B, T).

    An empty sentence keeps one valid position that holds `value`: attention over no position at all has no meaning, and
    one padding word does no harm.

    Example:
        >>> numbers, valid = pad([[5, 6], [7], []])
        >>> numbers.tolist(), valid.tolist()
        ([[5, 6], [7, 0], [0, 0]], [[True, True], [True, False], [True, False]])

    Args:
        sentences: Sequences of numbers.
        value: What fills up.
        length: Cut longer sentences to this many positions, at the end.
    """
    if length is not None and length < 1:
        raise ValueError(f"length is {length}; sentences must keep at least one position")
    lengths = [max(1, min(len(s), length) if length else len(s)) for s in sentences]
    numbers = torch.full((len(sentences), max(lengths, default=1)), value, dtype=torch.long)
    for row, (sentence, count) in enumerate(zip(sentences, lengths)):
        if len(sentence):
            numbers[row, :count] = torch.as_tensor(list(sentence[:count]), dtype=torch.long)
    valid = torch.arange(numbers.shape[1]) < torch.tensor(lengths, dtype=torch.long)[:, None]
    return numbers, valid


def order(
    size: int,
    batch: int,
    seed: int = 0,
    epoch: int = 0,
    lengths: Sequence[int] | None = None,
    shuffle: bool = True,
) -> list[np.ndarray]:
    """The examples of each batch of an epoch, the same for the same seed and epoch on every machine.

    Example:
        >>> [b.tolist() for b in order(5, 2, shuffle=False)]
        [[0, 1], [2, 3], [4]]

    Args:
        size: Number of examples.
        batch: Examples a batch; the last batch may be smaller.
        seed: Changes every epoch's order.
        epoch: Each epoch has its own order.
        lengths: Length of each example. Batches are then made of examples of like length, which saves padding: blocks of
            fifty batches are sorted by length, and the batches shuffled.
        shuffle: False keeps the given order.
    """
    if batch < 1:
        raise ValueError(f"batch is {batch}; it must be at least 1")
    if lengths is not None and len(lengths) != size:
        raise ValueError(f"lengths has {len(lengths)} entries for {size} examples")
    if not shuffle:
        return [np.arange(size)[i : i + batch] for i in range(0, size, batch)]
    random = np.random.default_rng([seed, epoch])
    index = random.permutation(size)
    if lengths is None:
        return [index[i : i + batch] for i in range(0, size, batch)]
    count = np.asarray(lengths)
    batches: list[np.ndarray] = []
    for start in range(0, size, 50 * batch):
        block = index[start : start + 50 * batch]
        block = block[np.argsort(count[block], kind="stable")]
        batches += [block[i : i + batch] for i in range(0, len(block), batch)]
    return [batches[i] for i in random.permutation(len(batches))]


def text_batches(
    sentences: Sequence[Sequence[int]],
    labels: Sequence[int] | Sequence[float] | np.ndarray,
    batch: int,
    seed: int = 0,
    epoch: int = 0,
    length: int | None = None,
    shuffle: bool = True,
    by_length: bool = False,
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield `(numbers (B, T), valid (B, T), labels (B,))` over one epoch.

    Example:
        >>> [labels.tolist() for _, _, labels in text_batches([[1], [2, 3], []], [0, 1, 0], 2, shuffle=False)]
        [[0, 1], [0]]

    Args:
        sentences: Encoded sentences.
        labels: Class numbers or scores.
        batch: Sentences a batch.
        seed: Changes the order.
        epoch: Changes the order.
        length: Cut longer sentences.
        shuffle: False keeps the given order.
        by_length: Put sentences of like length together.
    """
    target = torch.as_tensor(np.asarray(labels))
    if len(target) != len(sentences):
        raise ValueError(f"labels has {len(target)} entries for {len(sentences)} sentences")
    lengths = [len(s) for s in sentences] if by_length else None
    for index in order(len(sentences), batch, seed, epoch, lengths, shuffle):
        numbers, valid = pad([sentences[i] for i in index], length=length)
        yield numbers, valid, target[torch.from_numpy(index)]


def columns(tokens: Sequence[int], batch: int) -> Tensor:
    """Cut one long text into `batch` parallel columns, (T, B); what does not fill a row is left out.

    Example:
        >>> columns([0, 1, 2, 3, 4, 5, 6], 2).tolist()
        [[0, 3], [1, 4], [2, 5]]

    Args:
        tokens: Numbers of the words.
        batch: How many columns.
    """
    if not 1 <= batch <= len(tokens):
        raise ValueError(f"batch is {batch}; it must lie between 1 and the {len(tokens)} tokens")
    steps = len(tokens) // batch
    return torch.as_tensor(list(tokens[: steps * batch]), dtype=torch.long).reshape(batch, steps).T.contiguous()


def windows(text: Tensor, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield `(inputs, next words)`, both (up to `steps`, B), over the columns of a text.

    Example:
        >>> [(x[:, 0].tolist(), y[:, 0].tolist()) for x, y in windows(columns(range(5), 1), 3)]
        [([0, 1, 2], [1, 2, 3]), ([3], [4])]
    """
    if steps < 1:
        raise ValueError(f"steps is {steps}; it must be at least 1")
    for start in range(0, len(text) - 1, steps):
        end = min(start + steps, len(text) - 1)
        yield text[start:end], text[start + 1 : end + 1]
