"""Every random state a run draws from, as tensors that a checkpoint can hold."""

import random
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator

from ...nn.randomness import RandomState, current
from ..errors import RunError


def own_state(device: torch.device) -> dict[str, Any]:
    """This process's generators: torch's on the CPU and on the device it trains on, numpy's, Python's."""
    version, words, gauss = random.getstate()
    numpy: Any = np.random.get_state(legacy=True)
    name, keys, place, has_gauss, cached = numpy
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": {"version": version, "words": torch.tensor(words), "gauss": gauss},
        "numpy": {"name": name, "keys": torch.from_numpy(keys.astype(np.int64)), "rest": [place, has_gauss, cached]},
    }
    if device.type != "cpu":
        state["device"] = {"kind": device.type, "state": current((device,)).states[device]}
    return state


def restore_own_state(state: dict[str, Any], device: torch.device) -> None:
    """Set this process's generators."""
    kept = state.get("device", {"kind": "cpu", "state": state["torch"]})
    if kept["kind"] != device.type:
        raise RunError(
            f"this run was started on {kept['kind']} and is resumed on {device.type}, whose random numbers are others; "
            "use the same --device or another --out"
        )
    torch.set_rng_state(state["torch"])
    python, numpy = state["python"], state["numpy"]
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    np.random.set_state((numpy["name"], numpy["keys"].numpy().astype(np.uint32), *numpy["rest"]))
    RandomState({device: kept["state"]}).restore()


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
        return [own_state(accelerator.device)]
    states: list[Any] = [None] * accelerator.num_processes
    torch.distributed.all_gather_object(states, own_state(accelerator.device))
    return states


def restore_random_state(states: list[dict[str, Any]], accelerator: Accelerator) -> None:
    """Give this process its own state back."""
    if len(states) != accelerator.num_processes:
        raise RunError(
            f"this run was started with {len(states)} process(es) and is resumed with {accelerator.num_processes}; "
            "use the same number or another --out"
        )
    restore_own_state(states[accelerator.process_index], accelerator.device)
