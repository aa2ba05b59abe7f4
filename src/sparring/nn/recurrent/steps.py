"""Which rows of a flat sequence batch each time step owns."""

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Steps:
    """The order in which a recurrence visits the rows of flat (N, .) arrays.

    Rows lie time step after time step; row r of a step belongs to example r. A padded batch has the same number of rows
    at every step, a packed one fewer and fewer; the reverse direction walks the same rows backwards. One description
    serves all of them, so no sequence is ever flipped or padded.

    >>> steps = Steps.of([2, 2, 1])
    >>> list(steps)
    [(0, 2), (2, 2), (4, 1)]
    >>> list(Steps.of([2, 2, 1], reverse=True))
    [(4, 1), (2, 2), (0, 2)]

    Args:
        offsets: first row of each step, in the order of the visit.
        rows: number of rows of each step, in the same order.
    """

    offsets: tuple[int, ...]
    rows: tuple[int, ...]

    @classmethod
    def of(cls, sizes: list[int], reverse: bool = False) -> "Steps":
        """From the number of running examples at each time step (never growing)."""
        offsets, total = [], 0
        for size in sizes:
            offsets.append(total)
            total += size
        order = slice(None, None, -1 if reverse else 1)
        return cls(tuple(offsets[order]), tuple(sizes[order]))

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(zip(self.offsets, self.rows))

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def total(self) -> int:
        """N, the rows of all steps."""
        return sum(self.rows)

    @cached_property
    def batch(self) -> int:
        return max(self.rows)

    @cached_property
    def longs(self) -> tuple[ctypes.Array, ctypes.Array]:
        """Offsets and rows as C arrays."""
        kind = ctypes.c_long * len(self.rows)
        return kind(*self.offsets), kind(*self.rows)

    def views(self, rows: Tensor) -> list[Tensor]:
        """The rows of each step, in the order of the visit; one split instead of a slice per step."""
        forwards = self.offsets[0] <= self.offsets[-1]
        parts = rows.split(list(self.rows if forwards else self.rows[::-1]))
        return list(parts if forwards else parts[::-1])

    def before(self, states: Tensor, first: Tensor) -> list[Tensor]:
        """The state that each step starts from: the step before, or `first` for the examples that begin there."""
        starts, previous = [], first[: self.rows[0]]
        for n, now in zip(self.rows, self.views(states)):
            known = previous.shape[0]
            starts.append(previous[:n] if known >= n else torch.cat([previous, first[known:n]]))
            previous = now
        return starts
