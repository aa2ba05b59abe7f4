"""The random state of every generator that a forward pass may draw from: look at it, put it back, start a fresh one."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..nn.matching import walk


@dataclass(frozen=True)
class RandomState:
    """Generator states by device; the CPU's is always there."""

    states: dict[torch.device, Tensor]

    def restore(self) -> None:
        for device, state in self.states.items():
            if device.type == "cpu":
                torch.set_rng_state(state)
            else:
                torch.get_device_module(device).set_rng_state(state, device)


CPU = torch.device("cpu")


def devices_of(model: nn.Module) -> tuple[torch.device, ...]:
    """The CPU and every accelerator on which the model keeps a parameter or buffer."""
    used = {
        tensor.device
        for _, module in walk(model)
        for tensor in (*module._parameters.values(), *module._buffers.values())
        if tensor is not None
    }
    return (CPU, *sorted((d for d in used if d.type not in ("cpu", "meta")), key=str))


def current(devices: tuple[torch.device, ...] = (CPU,)) -> RandomState:
    """A copy of the present state."""
    return RandomState(
        {d: torch.get_rng_state() if d.type == "cpu" else torch.get_device_module(d).get_rng_state(d) for d in devices}
    )


def fresh(devices: tuple[torch.device, ...] = (CPU,)) -> RandomState:
    """A new state, seeded by one draw from the global generator: independent noise that can be replayed."""
    seed = int(torch.randint(2**62, ()))
    return RandomState({d: torch.Generator(d).manual_seed(seed).get_state() for d in devices})


@contextmanager
def drawing_from(state: RandomState | None) -> Iterator[None]:
    """Run a block on `state` and put the generators back as they were, whatever happens inside."""
    if state is None:
        yield
        return
    outside = current(tuple(state.states))
    state.restore()
    try:
        yield
    finally:
        outside.restore()
