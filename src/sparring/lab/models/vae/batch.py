"""A batch of sparse rows: only the stored entries, never the zeros."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ....metrics.ranking import CSR


@dataclass(frozen=True)
class Rows:
    """B users and the items they have, as flat lists of n stored entries.

    >>> from scipy.sparse import csr_array
    >>> rows = Rows.of(csr_array([[0.0, 2, 0], [0, 0, 0], [1, 0, 3]]))
    >>> rows.items.tolist(), rows.users.tolist(), rows.values.tolist(), len(rows)
    ([1, 0, 2], [0, 2, 2], [2.0, 1.0, 3.0], 3)
    >>> Rows.of(csr_array([[3.0, 4.0]])).normalised.tolist()
    [0.6000000238418579, 0.800000011920929]

    Attributes:
        items: (n,) column of each entry.
        users: (n,) which row of the batch it stands in, ascending.
        values: (n,) what is stored there.
        offsets: (B + 1,) where each row begins; the last is n.
        width: number of columns.
        ids: (B,) the rows' places in the matrix they were cut from.
    """

    items: Tensor
    users: Tensor
    values: Tensor
    offsets: Tensor
    width: int
    ids: Tensor

    @classmethod
    def of(cls, matrix: CSR, index: Any = None, like: Tensor | None = None) -> "Rows":
        """Cut rows out of a SciPy CSR matrix (`index`: a tensor of row numbers, None: all), as floats of `like`'s kind."""
        ids = torch.arange(matrix.shape[0])[slice(None) if index is None else index]
        part = matrix if index is None else matrix[ids.numpy()]
        users = torch.repeat_interleave(torch.arange(len(ids)), torch.as_tensor(part.indptr).diff())
        values = torch.as_tensor(part.data)
        stored = values != 0
        items, users, values = torch.as_tensor(part.indices).long()[stored], users[stored], values[stored]
        offsets = torch.searchsorted(users, torch.arange(len(ids) + 1))
        return cls(items, users, values, offsets, matrix.shape[1], ids).to(torch.empty(0) if like is None else like)

    def to(self, where: Tensor | torch.device | str, **ignored: Any) -> "Rows":
        """The same rows on another device; given a tensor, on its device with the values in its precision."""
        device = where.device if isinstance(where, Tensor) else where
        items, users, offsets, ids = (t.to(device) for t in (self.items, self.users, self.offsets, self.ids))
        return Rows(items, users, self.values.to(where), offsets, self.width, ids)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def normalised(self) -> Tensor:
        """(n,) the entries of rows scaled to length one; empty rows stay empty."""
        length = self.sum(self.values.square()).sqrt()
        return self.values / length[self.users]

    def sum(self, entries: Tensor) -> Tensor:
        """Add up (n,) entries within each row: (B,)."""
        return entries.new_zeros(len(self)).index_add(0, self.users, entries)

    def dense(self) -> Tensor:
        """(B, width), for a look or a test."""
        table = self.values.new_zeros(len(self), self.width)
        return table.index_put((self.users, self.items), self.values)
