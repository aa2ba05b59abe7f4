"""One model, one thread at a time: a pass places values on the modules themselves."""

import threading
from collections.abc import Callable

from torch import nn

_owners: dict[int, tuple[int, int]] = {}  # id of a model -> its thread and how deep it is inside
_lock = threading.Lock()


def alone(model: nn.Module) -> Callable[[], None]:
    """Enter a pass of `model`; returns the way out. Raises where another thread is inside one."""
    key, me = id(model), threading.get_ident()
    with _lock:
        owner, depth = _owners.get(key, (me, 0))
        if owner != me:
            raise RuntimeError(
                f"two threads run {type(model).__name__} at the same time, and a pass with sites places values on its modules: "
                "give each thread a copy of the model (copy.deepcopy), or let them take turns"
            )
        _owners[key] = (me, depth + 1)

    def leave() -> None:
        with _lock:
            if depth:
                _owners[key] = (me, depth)
            else:
                del _owners[key]

    return leave
