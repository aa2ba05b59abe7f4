"""Rows of the methods table under `DistributedDataParallel` and `fully_shard`: what each process does, and what must come out."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from methods import METHODS
from ranked_training import Player, built, distance, expected, table, train
from ranks import SHARE

REFUSED = {  # by the way of sharding: methods, and what the sentence says to do
    "block": {
        **{m.name: "fully_shard(objective)" for m in METHODS if m.name.startswith("learnable_bernoulli")},
        **dict.fromkeys(("salt", "salt-adam-2", "salt-late", "salt-scores"), 'unroll="finite_difference"'),
        "deg": "fully_shard(objective)",
        "trs": "DistributedDataParallel(objective)",
    },
    "objective": {"smart": "fully_shard(model)"},
}
REFUSED["model"] = REFUSED["block"]


def ddp(rank: int, world: int, names: Sequence[str], static: bool = False) -> dict[str, Any]:
    """Train rows; losses are asked for through `objective.steps` and, where a step has one, by calling the wrapper as well."""
    found = {}
    for name in names:
        objective, batch = built(name, world)
        wrapped = DistributedDataParallel(objective, static_graph=static)
        once = objective.parts(batch[1]) == 1 and not static

        def ask(*given: Any, objective: Any = objective, wrapped: Any = wrapped, once: bool = once) -> Any:
            if once and objective.number % 2:
                yield wrapped(*given)
            else:
                yield from objective.steps(*given)

        found[name] = train([Player.of(objective, batch, rank, (SHARE,) * world, ask)])
    return found


def check_rows(found: list[dict[str, Any]], world: int) -> None:
    wrong = []
    for name in found[0]:
        one = expected(name, world)
        # The probe of a finite difference depends on the longest pull of the batch.
        bound = 1e-6 if "finite" in name else 1e-9
        for rank, ranks in enumerate(found):
            off = distance(ranks[name], one, buffers=rank == 0)
            if not off <= bound:
                wrong.append(f"{name}, rank {rank} of {world}: off by {off:.1e}")
    assert not wrong, "\n".join(wrong)


def shard(model: nn.Module, blocks: bool) -> None:
    """The model as a whole, after every module that has parameters of its own (and is called, unlike attention's projection)."""
    for module in model.modules() if blocks else ():
        own = any(True for _ in module.parameters(recurse=False))
        if module is not model and own and type(module).__name__ != "NonDynamicallyQuantizableLinear":
            fully_shard(module)
    fully_shard(model)


def fsdp(rank: int, world: int, wanted: Mapping[str, Sequence[str]]) -> dict[tuple[str, str], Any]:
    """What training rows gives in each way, or the sentence of the refusal."""
    found: dict[tuple[str, str], Any] = {}
    for way, names in wanted.items():
        for name in names:
            try:
                if way == "objective":
                    objective, batch = built(name, world)
                    fully_shard(objective)
                else:
                    objective, batch = built(name, world, lambda model, way=way: shard(model, way == "block"))
                found[way, name] = train([Player.of(objective, batch, rank, (SHARE,) * world)])
            except RuntimeError as error:
                found[way, name] = str(error)
    return found


def check_shards(found: list[dict[tuple[str, str], Any]], world: int) -> None:
    wrong = []
    for (way, name), first in found[0].items():
        refusal = REFUSED[way].get(table()[name][0].name)
        if refusal is not None or isinstance(first, str):
            if not (isinstance(first, str) and refusal and refusal in first):
                wrong.append(f"{name} by {way}: {first if isinstance(first, str) else 'not refused'}")
            continue
        one = expected(name, world)
        for rank, ranks in enumerate(found):
            off = distance(ranks[way, name], one, buffers=rank == 0)
            if not off <= (1e-6 if "finite" in name else 1e-9):
                wrong.append(f"{name} by {way}, rank {rank} of {world}: off by {off:.1e}")
    assert not wrong, "\n".join(wrong)
