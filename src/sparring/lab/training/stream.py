"""Examples in an endless seeded order: pass after pass over the data, each in an order of its own.

>>> stream = Stream(5, seed=0)
>>> first = [stream.draw(place, 2).tolist() for place in (0, 2, 4)]
>>> sorted(first[0] + first[1] + first[2][:1])
[0, 1, 2, 3, 4]
>>> Stream(5, seed=0).draw(4, 2).tolist() == first[2]
True
"""

import torch
from torch import Tensor


class Stream:
    """What stands at any place of the endless order; a resumed run needs to know its place and nothing else.

    Args:
        count: how many examples there are.
        seed: of the order; pass `k` is shuffled with `seed + k`.
    """

    def __init__(self, count: int, seed: int) -> None:
        self.count, self.seed = count, seed
        self.number, self.order = -1, torch.empty(0, dtype=torch.long)

    def draw(self, start: int, size: int) -> Tensor:
        """The `size` examples from place `start` on."""
        found = []
        while size > 0:
            number, place = divmod(start, self.count)
            if number != self.number:
                generator = torch.Generator().manual_seed(self.seed + number)
                self.number, self.order = number, torch.randperm(self.count, generator=generator)
            found.append(self.order[place : place + size])
            start, size = start + len(found[-1]), size - len(found[-1])
        return found[0] if len(found) == 1 else torch.cat(found)
