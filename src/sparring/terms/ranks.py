"""Several processes train one objective: refuse what cannot be right among them."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any
from weakref import WeakSet

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..passes.ranks import among_ranks, holds_parts, is_managed
from .playable import Playable

_met: "WeakSet[nn.Module]" = WeakSet()


def check_ranks(objective: nn.Module, model: nn.Module, terms: Sequence[Playable], options: Mapping[str, Any]) -> None:
    """Raise where the ranks train different objectives, or a term needs parameters that are not here."""
    if not among_ranks():
        return
    sharded = holds_parts(model)
    for term in terms if sharded else ():
        if term.whole:
            raise RuntimeError(
                f"{term.name}: {term.whole}, and fully_shard keeps a part of them in each process: shard the objective as one, "
                "fully_shard(objective), or use DistributedDataParallel(objective)"
                + (', or unroll="finite_difference"' if term.unrolls else "")
            )
    if is_managed(objective):
        for term in terms:
            if isinstance(term, nn.Module) and any(True for _ in term.buffers()):
                raise RuntimeError(
                    f"{term.name} keeps values of its own beside the parameters, which fully_shard(objective) would gather behind "
                    "its back: call fully_shard(model) first and build the objective on it"
                )
    group = _group(objective, sharded)
    if group is not None and objective not in _met:
        _met.add(objective)
        _compare([_said(term) for term in terms] + [f"{k}={_said(v)}" for k, v in options.items()], group)


def _group(objective: nn.Module, sharded: bool) -> Any:
    """The processes that are here at this very moment; None where that is not sure."""
    wrapper = DistributedDataParallel._get_active_ddp_module()
    if wrapper is not None and wrapper.module is objective:
        return wrapper.process_group
    return dist.group.WORLD if sharded or is_managed(objective) else None


def _compare(own: list[str], group: Any) -> None:
    everybody: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everybody, own, group=group)
    for rank, other in enumerate(everybody):
        if other != everybody[0]:
            here, there = ([x for x in a if x not in b] for a, b in ((everybody[0], other), (other, everybody[0])))
            raise RuntimeError(
                f"the ranks train different objectives: rank 0 has {', '.join(here) or 'nothing'} where rank {rank} has "
                f"{', '.join(there) or 'nothing'}; build the same recipe with the same settings on every rank"
            )


def _said(thing: Any) -> str:
    """A value in words that are the same in every process: no addresses, no devices."""
    if is_dataclass(thing) and not isinstance(thing, type):
        told = [f"{f.name}={_said(getattr(thing, f.name))}" for f in fields(thing) if f.repr and f.init]
        return f"{type(thing).__name__}({', '.join(told)})"
    if isinstance(thing, partial):
        return _said([thing.func, *thing.args, *thing.keywords.items()])
    if isinstance(thing, list | tuple):
        return f"({', '.join(map(_said, thing))})"
    if isinstance(thing, Tensor):
        return f"a tensor of shape {tuple(thing.shape)}"
    if callable(thing) and hasattr(thing, "__qualname__"):
        return str(thing.__qualname__)
    inner = getattr(thing, "term", None)
    if inner is not None:
        return f"{type(thing).__name__}({_said(inner)})"
    return repr(thing) if isinstance(thing, str | int | float | bool | None) else type(thing).__name__
