"""What must agree where a framework trains an objective: the processes with each other, a batch with its model."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch import Tensor

from ..objective import Objective
from ..terms.playable import Leading, Playable


def check_ranks(objective: Objective) -> None:
    """Refuse processes that train with different terms: their gradients would be averaged all the same, or wait forever."""
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return
    found: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(found, ", ".join(map(_described, objective.terms)) or "no terms")
    for rank, terms in enumerate(found):
        if terms != found[0]:
            raise ValueError(
                f"the processes train with different terms: process 0 has {found[0]}, process {rank} has {terms}; build the same "
                "recipe in every process"
            )


def _described(term: Playable) -> str:
    weight = getattr(term, "weight", getattr(getattr(term, "term", None), "weight", None))
    words = [f"{term.name} at {', '.join(map(str, term.sites)) or 'the model'}"]
    words += [f"weight {weight}"] if isinstance(weight, int | float) else []
    words += [f"{term.parts} losses"] if isinstance(term, Leading) else []
    return re.sub(r" at 0x[0-9a-f]+", "", " ".join(words))


def of_this_rank(objective: Objective) -> dict[str, Tensor]:
    """The part of an objective's own state that depends on the batches a process has seen: perturbations that are carried on.

    Averaged weights and counters are the same in every process.
    """
    shared = {"_extra_state", *(name for name, _ in objective.named_buffers())}
    return {k: v for k, v in objective.state_dict().items() if k not in shared and not k.startswith("model.")}


@contextmanager
def explained(objective: Objective, batch: Any) -> Iterator[None]:
    """Where a step fails: say so if the batch is on a device where the model has nothing."""
    try:
        yield
    except RuntimeError as error:
        homes = {tensor.device for tensor in (*objective.model.parameters(), *objective.model.buffers())}
        for tensor in _tensors(batch):
            if homes and tensor.device not in homes:
                there = ", ".join(sorted(map(str, homes)))
                raise ValueError(
                    f"the batch is on {tensor.device} and the objective's model on {there}: move one of them, such as "
                    f'objective.to("{tensor.device}")'
                ) from error
        raise


def _tensors(batch: Any) -> Iterator[Tensor]:
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from _tensors(value)
    elif isinstance(batch, tuple | list):
        for value in batch:
            yield from _tensors(value)
