"""Padded sentences, the batches of an epoch in a seeded order, and the columns a language model is trained on."""

from collections.abc import Iterator, Sequence

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


def epoch(
    count: int,
    size: int,
    number: int,
    lengths: Tensor | None = None,
    tokens: int = 0,
    parts: int = 1,
) -> list[Tensor]:
    """The examples of each batch of one epoch: the same for the same number everywhere, and as many in every epoch.

    Examples of unlike length waste most of a batch on padding. Given `lengths`, the examples are shuffled, blocks of a
    hundred batches are sorted by length, cut, and the batches shuffled: neighbours in length meet, differently each epoch.

    Example:
        >>> lengths = torch.tensor([3, 9, 3, 9])
        >>> sorted(sorted(batch.tolist()) for batch in epoch(4, 2, number=0, lengths=lengths))
        [[0, 2], [1, 3]]
        >>> sorted(sorted(batch.tolist()) for batch in epoch(4, 0, number=0, lengths=lengths, tokens=9))
        [[0, 2], [1], [3]]

    Args:
        count: Number of examples.
        size: Examples a batch; an incomplete last batch is left out, unless it is the only one.
        number: Decides the order; another one for every seed and epoch.
        lengths: Length of each example, (count,).
        tokens: Above 0, a batch holds at most so many positions, padding counted, instead of `size` examples. All examples
            are then sorted together, so that the cuts, which only depend on the lengths, are the same in every epoch.
        parts: The number of examples of a batch of `tokens` is a multiple of it (processes that share the batch).
    """
    if lengths is not None and len(lengths) != count:
        raise ValueError(f"lengths has {len(lengths)} entries for {count} examples")
    generator = torch.Generator().manual_seed(number)
    order = torch.randperm(count, generator=generator)
    if tokens:
        if lengths is None:
            raise ValueError(f"tokens={tokens} needs lengths: how many positions each example takes")
        order = order[lengths[order].argsort(stable=True)]
        batches = list(order.split(_cuts(lengths[order].tolist(), tokens, parts)))
        if count % parts and len(batches) > 1:
            batches.pop()
    else:
        kept = order[: max(1, count // size) * size]
        if lengths is None:
            return list(kept.split(size))
        blocks = [block[lengths[block].argsort(stable=True)] for block in kept.split(100 * size)]
        batches = list(torch.cat(blocks).split(size))
    return [batches[place] for place in torch.randperm(len(batches), generator=generator).tolist()]


def _cuts(lengths: Sequence[int], tokens: int, parts: int) -> list[int]:
    """How many of the examples, shortest first, go into each batch; what is left when a multiple no longer fits is the last."""
    sizes: list[int] = []
    place = 0
    while place < len(lengths):
        count = 0
        while place + count + parts <= len(lengths) and (count + parts) * lengths[place + count + parts - 1] <= tokens:
            count += parts
        if count == 0 and place + parts <= len(lengths):
            longest = lengths[place + parts - 1]
            raise ValueError(
                f"tokens={tokens} does not hold {parts} example(s) of {longest} positions; use more tokens"
            )
        sizes.append(count or len(lengths) - place)
        place += sizes[-1]
    return sizes


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
