"""Find the wrapper that synchronises an objective's gradients, whichever way its losses are asked for."""

import gc
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

_known: "WeakKeyDictionary[nn.Module, Any]" = WeakKeyDictionary()


def wrapper_of(module: nn.Module) -> nn.Module | None:
    """The `DistributedDataParallel` around a module, if there is one.

    A loss that does not come out of the wrapper's own call is never synchronised, and nothing says so. The search looks at every
    object once for each module.
    """
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return None
    known = _known.get(module)
    if known is None:
        # By type: isinstance() would ask every object for its class, and some answer with a warning.
        found: list[Any] = [x for x in gc.get_objects() if issubclass(type(x), DistributedDataParallel)]
        found = [x for x in found if x.module is module]
        known = _known[module] = ref(found[-1]) if found else _nobody
    return known()


def _nobody() -> None:
    return None
