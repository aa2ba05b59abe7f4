"""Processes share the work of scoring: each runs its rows of a batch, and all get all outputs."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten


@contextmanager
def shared(model: nn.Module, processes: int, rank: int) -> Iterator[None]:
    """Inside the block every call of the model without gradients is divided among the processes, which all make the same calls.

    A call that cannot be divided runs whole in every process: one that draws random numbers, whose outputs are not one row per
    example, or differ in shape between processes; and every call after it. So do models in which examples meet.
    """
    if processes == 1 or any(getattr(module, "batchwise", False) for module in model.modules()):
        yield
        return
    kind, divides = type(model), True

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        nonlocal divides
        inner = partial(kind.forward, self)
        examples = _rows((args, kwargs))
        if not divides or torch.is_grad_enabled() or not examples or examples < processes:
            return inner(*args, **kwargs)
        size = -(-examples // processes)
        mine = torch.arange(rank * size, (rank + 1) * size).clamp_max(
            examples - 1
        )  # the last ones twice where it is uneven
        before = torch.get_rng_state()
        part = inner(*_taken(args, mine), **_taken(kwargs, mine))
        moved = not torch.equal(before, torch.get_rng_state())
        outputs = None if moved else _gathered(part, size, examples, processes)
        if outputs is None:
            divides = False
            torch.set_rng_state(before)
            return inner(*args, **kwargs)
        return outputs

    # A class of its own, not a patch of this one model's forward: copies that are made of the model inside run themselves.
    model.__class__ = type(kind.__name__, (kind,), {"forward": forward})
    try:
        yield
    finally:
        model.__class__ = kind


def _rows(tree: Any) -> int:
    """How many examples every tensor of a call has; 0 where they differ or there is none."""
    found = {len(leaf) if leaf.dim() else 0 for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)}
    return found.pop() if len(found) == 1 else 0


def _taken(tree: Any, rows: Tensor) -> Any:
    return tree_map(lambda leaf: leaf[rows.to(leaf.device)] if isinstance(leaf, Tensor) else leaf, tree)


def _gathered(part: Any, size: int, examples: int, processes: int) -> Any:
    """The outputs of all processes, one after the other; None where they do not fit together."""
    leaves, shape = tree_flatten(part)
    own = [tuple(leaf.shape) if isinstance(leaf, Tensor) else type(leaf).__name__ for leaf in leaves]
    if not all(isinstance(leaf, Tensor) and leaf.dim() and len(leaf) == size for leaf in leaves):
        own = None  # type: ignore[assignment]
    everybody: list[Any] = [None] * processes
    dist.all_gather_object(everybody, own)
    if own is None or any(other != own for other in everybody):
        return None
    whole = []
    for leaf in leaves:
        parts = [torch.empty_like(leaf, memory_format=torch.contiguous_format) for _ in range(processes)]
        dist.all_gather(parts, leaf.contiguous())
        whole.append(torch.cat(parts)[:examples])
    return tree_unflatten(whole, shape)
