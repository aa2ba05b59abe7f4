"""The random state of every generator that a forward pass may draw from: look at it, put it back, start a fresh one.

torch's generators on every device of the model, and the two that models use behind its back: numpy's global one (SpecAugment in
Hugging Face's audio models) and Python's.
"""

import ctypes
import pickle
import random
import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from .matching import walk

CPU = torch.device("cpu")
ONLY_CPU = (CPU,)


@dataclass
class RandomState:
    """Generator states: torch's by device (the CPU's is always there), and those outside torch by name where they matter."""

    states: dict[torch.device, Tensor]
    outside: dict[str, Any] = field(default_factory=dict)

    def restore(self, of: "RandomState | None" = None) -> None:
        """Put the generators back to this; all of them, or those that `of` has as well."""
        for device, state in self.states.items():
            if of is None or device in of.states:
                _set_state(device, state)
        for name, state in self.outside.items():
            if of is None or name in of.outside:
                _OUTSIDE[name][1](state)

    def beside(self) -> "RandomState":
        """The present state of the same generators."""
        return RandomState(_states(self.states), {name: _OUTSIDE[name][0]() for name in self.outside})

    def within(self, other: "RandomState | None") -> bool:
        """Whether the other has a state of each of these generators."""
        return (
            other is not None
            and self.states.keys() <= other.states.keys()
            and self.outside.keys() <= other.outside.keys()
        )

    def joined(self, other: "RandomState | None") -> "RandomState":
        """The generators of both."""
        return (
            self if other is None else RandomState({**other.states, **self.states}, {**other.outside, **self.outside})
        )

    def take_over(self) -> Callable[[], None]:
        """Draw from this state from now on; returns the way back to the present one."""
        before = self.beside()
        self.restore()
        return before.restore


def _numpy_state() -> Any:
    numpy = sys.modules.get("numpy")
    return None if numpy is None else numpy.random.get_state(legacy=False)


def _set_numpy_state(state: Any) -> None:
    if state is not None:
        sys.modules["numpy"].random.set_state(state)


_OUTSIDE = {"python": (random.getstate, random.setstate), "numpy": (_numpy_state, _set_numpy_state)}


def _states(devices: Iterable[torch.device]) -> dict[torch.device, Tensor]:
    return {d: _state(d) for d in devices}


def _state(device: torch.device) -> Tensor:
    if device.type == "cpu":
        return torch.default_generator.get_state()
    module = torch.get_device_module(device)
    return module.get_rng_state(*_which(device))


def _set_state(device: torch.device, state: Tensor) -> None:
    if device.type == "cpu":
        torch.default_generator.set_state(state)
    else:
        torch.get_device_module(device).set_rng_state(state, *_which(device))


def _which(device: torch.device) -> tuple[torch.device, ...]:
    return () if device.type == "mps" else (device,)  # there is one of those, and its functions take no device


def accelerated() -> bool:
    """Whether this process has any device but the CPU."""
    renamed = torch._C._get_privateuse1_backend_name() != "privateuseone"  # a backend of somebody's own
    return renamed or torch.accelerator.current_accelerator() is not None


def devices_of(model: nn.Module) -> tuple[torch.device, ...]:
    """The CPU and every accelerator on which the model keeps a parameter or buffer."""
    return devices_in(module for _, module in walk(model))


def devices_in(modules: Iterable[nn.Module]) -> tuple[torch.device, ...]:
    """The CPU and every accelerator on which one of the modules itself keeps a parameter or buffer."""
    used = {
        tensor.device
        for module in modules
        for part in (module._parameters, module._buffers)
        for tensor in part.values()
        if tensor is not None
    }
    return (CPU, *sorted((d for d in used if d.type not in ("cpu", "meta")), key=str))


def current(devices: tuple[torch.device, ...] = (CPU,)) -> RandomState:
    """A copy of torch's present state."""
    return RandomState(_states(devices))


def fresh(devices: tuple[torch.device, ...] = (CPU,), outside: bool = False) -> RandomState:
    """A new state, seeded by one draw from the global generator: independent noise that can be replayed.

    Args:
        devices: of the model.
        outside: seed numpy's and Python's generators as well.
    """
    seed = int(torch.randint(2**62, (), device="cpu"))
    states = {d: torch.Generator(d).manual_seed(seed).get_state() for d in devices}
    if not outside:
        return RandomState(states)
    others: dict[str, Any] = {"python": random.Random(seed).getstate()}
    if "numpy" in sys.modules:
        others["numpy"] = _numpy_seeded(seed)
    return RandomState(states, others)


def _numpy_seeded(seed: int) -> Any:
    """A state of the kind that numpy's global generator is of now (`numpy.random.set_bit_generator`): it takes no other."""
    numpy = sys.modules["numpy"].random
    kind = type(numpy.get_bit_generator())
    return numpy.RandomState(seed % 2**32 if kind is numpy.MT19937 else kind(seed)).get_state(legacy=False)


class Watch:
    """What a clean pass drew: begun before it, asked after it. Generators that did not move need not be put back."""

    def __init__(self, devices: tuple[torch.device, ...]) -> None:
        self.before = RandomState(_states(devices))
        self.python = _python_mark()
        self.numpy = _numpy_mark()

    def moved(self) -> RandomState | None:
        """The state before the pass of the generators that moved during it; None if none did."""
        states = {d: s for d, s in self.before.states.items() if _bytes(s) != _bytes(_state(d))}
        outside: dict[str, Any] = {}
        if self.python != _python_mark():
            outside["python"] = _python_state_at(self.python)
        if self.numpy is not None and self.numpy != _numpy_mark():
            outside["numpy"] = _numpy_state_at(self.numpy)
        return RandomState(states, outside) if states or outside else None


def _bytes(state: Tensor) -> bytes:
    return ctypes.string_at(state.data_ptr(), state.nbytes)  # an eighth of the price of torch.equal


# Both generators outside torch are of the same kind, and asking them for a copy takes as long as a small forward pass. So their
# memory is read instead, where it lies as expected: 624 words and the position. Normal numbers come in pairs, and the second one is
# kept for the next call: it is a part of the state that no word tells of.
_Words = ctypes.c_char * (4 * 625)
_SPARE = "i4xd"  # whether numpy keeps one, and which
_Spare = ctypes.c_char * struct.calcsize(_SPARE)


def _python_mark() -> Any:
    """Something that differs when Python's global generator has moved."""
    generator: Any = random._inst
    memory = _python_memory(generator)
    return generator.getstate() if memory is None else (memory.raw, generator.gauss_next)


@cache
def _python_memory(generator: random.Random) -> Any:
    """Where Python's generator keeps its position and words, behind the header of the object; None where that is not sure."""
    if sys.implementation.name != "cpython" or type(generator) is not random.Random:
        return None
    memory = _Words.from_address(id(generator) + object.__basicsize__)
    numbers = struct.unpack("i624I", memory.raw)
    return memory if (*numbers[1:], numbers[0]) == generator.getstate()[1] else None


def _python_state_at(mark: Any) -> Any:
    words, *spare = mark
    if not isinstance(words, bytes):
        return mark
    numbers = struct.unpack("i624I", words)
    return random.Random.VERSION, (*numbers[1:], numbers[0]), *spare


def _numpy_mark() -> Any:
    """Something that differs when numpy's global generator has moved; None without numpy."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    spare, words = _numpy_spare(), _numpy_words(numpy.random.get_bit_generator())
    if spare is None or words is None:
        return (pickle.dumps(numpy.random.get_state(legacy=False)),)
    return words.raw + spare.raw


@cache
def _numpy_words(generator: Any) -> Any:
    if type(generator).__name__ != "MT19937":
        return None
    return _Words.from_address(generator.ctypes.state_address)


@cache
def _numpy_spare() -> Any:
    """Where numpy's global generator keeps the second of two normal numbers, as another one of its kind shows; None where that is
    not sure."""
    numpy = sys.modules["numpy"].random
    kind, ours = numpy.RandomState, numpy.mtrand._rand
    if sys.implementation.name != "cpython" or type(ours) is not kind:
        return None
    other = kind(0)
    other.normal()
    kept = struct.pack(_SPARE, 1, other.get_state(legacy=False)["gauss"])
    place = ctypes.string_at(id(other), kind.__basicsize__).find(kept)
    other.normal()
    used = struct.pack(_SPARE, 0, 0.0)
    if place < 0 or ctypes.string_at(id(other) + place, len(used)) != used:
        return None
    return _Spare.from_address(id(ours) + place)


def _numpy_state_at(mark: Any) -> Any:
    if isinstance(mark, tuple):  # of another kind: arrays inside cannot be compared with ==, their bytes can
        return pickle.loads(mark[0])
    numpy = sys.modules["numpy"]
    words = numpy.frombuffer(mark, numpy.uint32, 625).copy()
    has, gauss = struct.unpack_from(_SPARE, mark, words.nbytes)
    state = {"key": words[:624], "pos": int(words[624])}
    return {"bit_generator": "MT19937", "state": state, "has_gauss": has, "gauss": gauss}


@contextmanager
def drawing_from(state: RandomState | None) -> Iterator[None]:
    """Run a block on `state` and put the generators back as they were, whatever happens inside."""
    if state is None:
        yield
        return
    back = state.take_over()
    try:
        yield
    finally:
        back()


@contextmanager
def put_back(*devices: torch.device) -> Iterator[None]:
    """Run a block and put torch's generators, the CPU's and those of the devices, back as they were."""
    with drawing_from(current((CPU, *sorted({d for d in devices if d.type not in ("cpu", "meta")}, key=str)))):
        yield
