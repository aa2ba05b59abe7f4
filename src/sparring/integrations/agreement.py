"""What must agree where a framework trains an objective in several processes."""

import re

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
