"""Notice when an optimiser has moved parameters, whatever optimiser it is."""

from collections.abc import Sequence
from typing import Any
from weakref import WeakSet

from torch import Tensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

_watches: "WeakSet[Updates]" = WeakSet()
_registered = False


class Updates:
    """Counts the changes of some parameters: steps of optimisers that hold one of them, and changes made by hand in place.

    Version counters alone do not do: fused optimisers leave them where they were.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.ones(2))
    >>> watch = Updates([weight])
    >>> weight.sum().backward(); torch.optim.SGD([weight], lr=0.1).step()
    >>> watch.changed(), watch.changed()
    (True, False)
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        global _registered
        if not _registered:
            register_optimizer_step_post_hook(_stepped)
            _registered = True
        self.parameters = parameters
        self.known = {id(p) for p in parameters}
        self.steps = 0
        self._seen = self._state()
        _watches.add(self)

    def _state(self) -> tuple[int, ...]:
        return (self.steps, *(p._version for p in self.parameters))

    def changed(self) -> bool:
        """Whether anything changed since the last time this was asked."""
        now = self._state()
        before, self._seen = self._seen, now
        return now != before


def _stepped(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    for watch in _watches:
        if any(id(p) in watch.known for group in optimizer.param_groups for p in group["params"]):
            watch.steps += 1
