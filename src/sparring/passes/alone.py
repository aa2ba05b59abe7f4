"""One model, one thread at a time: a pass places values on the modules themselves."""

import threading
from collections.abc import Callable
from functools import partial

from torch import nn

_owners: dict[int, int] = {}  # id of a model -> the thread that is inside a pass of it


def alone(model: nn.Module) -> Callable[[], object]:
    """Enter a pass of `model`; returns the way out. Raises where another thread is inside one."""
    key, me = id(model), threading.get_ident()
    if _owners.get(key) == me:
        return _stay  # a pass inside a pass: the outer one leaves
    if _owners.setdefault(key, me) != me:  # one thread wins, whoever asks at the same time
        raise RuntimeError(
            f"two threads run {type(model).__name__} at the same time, and a pass with sites places values on its modules: "
            "give each thread a copy of the model (copy.deepcopy), or let them take turns"
        )
    return partial(_owners.pop, key)


def _stay() -> None:
    pass
