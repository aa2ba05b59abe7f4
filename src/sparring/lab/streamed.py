"""Examples that are read in order and never all held: a file read line by line, an `IterableDataset`, a generator.

>>> lines = Streamed(lambda number: ((torch.tensor([n + 0.0]), n % 2) for n in range(5)), count=5)
>>> inputs, targets = lines.batch(torch.arange(2, 4))
>>> inputs.tolist(), targets.tolist()
([[2.0], [3.0]], [0, 1])
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import IterableDataset, default_collate

from .errors import LabError
from .task import Split


class _Reader:
    """Where the source stands: the pass over it, the place in that pass, and what is left of it."""

    def __init__(self) -> None:
        self.place, self.left = 0, iter(())
        self.number = -1


@dataclass(frozen=True)
class Streamed(Split):
    """A split whose examples come one after the other from a source that is read again for every epoch.

    Places count on over the passes: place `count + 3` is the fourth example of the second pass. A place ahead is reached by reading
    on, and one behind by starting that pass again; a resumed run reads from the start of its epoch to where it stopped, so that it
    goes on with the same examples. Processes read the whole source each, and keep their share of every batch.

    Args:
        inputs: the source: `source(number)` gives the `(input, target)` pairs of pass `number` in an order that depends on nothing
            else, or an `IterableDataset` of such pairs; one with `set_epoch` is told the number first.
        count: how many examples a pass has; more than that are left unread.
    """

    count: int = 0
    _reader: _Reader = field(default_factory=_Reader, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.count < 1:
            raise LabError(f"Streamed(count={self.count}): say how many examples a pass over the source has")
        if self.targets is not None or self.lengths is not None:
            raise LabError("Streamed takes pairs from its source: neither targets= nor lengths= can be given beside it")

    def __len__(self) -> int:
        return self.count

    def batch(self, index: Tensor | slice) -> tuple[Any, Any]:
        """The examples at increasing places."""
        places = range(self.count)[index] if isinstance(index, slice) else index.tolist()
        inputs, targets = default_collate([self._at(place) for place in places])
        return self.collate(inputs, targets) if self.collate else (inputs, targets)

    def plan(self, start: int, batches: int, size: int, whole: bool) -> list[Tensor]:
        """The places of so many batches from `start` on; `whole` lets the last one of a pass be short."""
        end = min(start + batches * size, start + self.count) if whole else start + batches * size
        return list(torch.arange(start, end).split(size))

    def _at(self, place: int) -> Any:
        number, place = divmod(place, self.count)
        reader = self._reader
        if number != reader.number or place < reader.place:
            reader.number, reader.place, reader.left = number, 0, iter(self._pass(number))
        for example in reader.left:
            reader.place += 1
            if reader.place > place:
                return example
        raise LabError(
            f"the source ended after {reader.place} examples of pass {number}, and count={self.count} says there are more: give the "
            "number that every pass has"
        )

    def _pass(self, number: int) -> Iterable[Any]:
        if not isinstance(self.inputs, IterableDataset):
            found: Iterator[Any] = self.inputs(number)
            return found
        if hasattr(self.inputs, "set_epoch"):
            self.inputs.set_epoch(number)
        return self.inputs
