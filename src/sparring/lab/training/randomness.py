"""Every random state a run draws from, as tensors that a checkpoint can hold."""

import random
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator

from ..errors import RunError


def own_state() -> dict[str, Any]:
    """This process's generators: torch (CPU and CUDA), numpy, Python."""
    version, words, gauss = random.getstate()
    numpy: Any = np.random.get_state(legacy=True)
    name, keys, place, has_gauss, cached = numpy
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": {"version": version, "words": torch.tensor(words), "gauss": gauss},
        "numpy": {"name": name, "keys": torch.from_numpy(keys.astype(np.int64)), "rest": [place, has_gauss, cached]},
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def restore_own_state(state: dict[str, Any]) -> None:
    """Set this process's generators."""
    torch.set_rng_state(state["torch"])
    python, numpy = state["python"], state["numpy"]
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    np.random.set_state((numpy["name"], numpy["keys"].numpy().astype(np.uint32), *numpy["rest"]))
    if "cuda" in state:
        torch.cuda.set_rng_state_all(state["cuda"])


def random_state(accelerator: Accelerator) -> list[dict[str, Any]]:
    """The state of every process, in the order of their ranks; each process must call it.

    >>> accelerator = Accelerator(cpu=True)
    >>> state = random_state(accelerator)
    >>> first = torch.rand(3), random.random(), np.random.rand()
    >>> restore_random_state(state, accelerator)
    >>> again = torch.rand(3), random.random(), np.random.rand()
    >>> bool((first[0] == again[0]).all()), first[1:] == again[1:]
    (True, True)
    """
    if accelerator.num_processes == 1:
        return [own_state()]
    states: list[Any] = [None] * accelerator.num_processes
    torch.distributed.all_gather_object(states, own_state())
    return states


def restore_random_state(states: list[dict[str, Any]], accelerator: Accelerator) -> None:
    """Give this process its own state back."""
    if len(states) != accelerator.num_processes:
        raise RunError(
            f"this run was started with {len(states)} process(es) and is resumed with {accelerator.num_processes}; "
            "use the same number or another --out"
        )
    restore_own_state(states[accelerator.process_index])
