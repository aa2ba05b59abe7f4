"""What a model remembers from one call to the next.

A perturbed pass is the clean pass with something placed at a site, and nothing else. The statistics of torch's own layers are held by
`Stillness`. Buffers of other layers that move when the model runs (averages of somebody's own norm, a code book) are found in the first
step: from then on every later pass of a step sees them as the clean pass found them, and leaves them as the clean pass left them.
What a model remembers elsewhere (a hidden state in an attribute, a generator of its own, inputs changed in place) nobody can put
back: where the first clean pass changed such a thing it runs again, and a model that answers differently then is refused.
Attributes that a model only writes, such as a loss of its own, are after a step what the clean pass made of them.

Recomputing a checkpointed region in backward moves nothing either, from the second step on: in the first nobody knew in time.
"""

import pickle
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ..sites.site import Undo
from .layout import Layout

Place = tuple[nn.Module, str]
_INTERNAL = frozenset(nn.Module().__dict__) - {"training"} | {"forward", "_flat_weights", "_flat_weight_refs"}
_OURS = __package__.partition(".")[0] + "."
_DEPTH = 3  # an object, a store in there, its dictionary, and what lies in that
_MANY = 1000  # entries of a container that is looked into
_OPAQUE = (nn.Module, type, FunctionType, MethodType, ModuleType)


@dataclass(frozen=True)
class Held:
    """Buffers as the clean pass found them."""

    found: tuple[tuple[nn.Module, str, Tensor], ...]

    def put(self) -> Undo:
        """Let the model see them, each a copy; returns the way back to what stands there now."""
        now = [(module, key, module._buffers[key]) for module, key, _ in self.found]
        for module, key, value in self.found:
            module._buffers[key] = value.clone()

        def undo() -> None:
            for module, key, value in now:
                module._buffers[key] = value

        return undo


@dataclass
class Memory:
    """What an objective has learned about its model.

    Attributes:
        moving: buffers that change when the model runs.
        written: attributes that do.
        looked: the modes (training or not) in which it was looked at and not refused.
    """

    moving: tuple[Place, ...] = ()
    written: frozenset[Place] = frozenset()
    looked: set[bool] = field(default_factory=set)
    layout: Layout | None = None

    def begin(self, model: nn.Module, layout: Layout, inputs: Any) -> "Look | Held | None":
        """Before a clean pass: a thorough look the first time, and copies of what is known to move later on."""
        if self.layout is not layout:
            self.layout, self.moving, self.written = layout, (), frozenset()
            self.looked.clear()
        if model.training in self.looked:
            return Held(tuple((m, key, m._buffers[key].clone()) for m, key in self.moving)) if self.moving else None  # type: ignore[union-attr]
        return Look(self, layout, inputs)

    def left(self) -> Undo | None:
        """The way back to the attributes that the pass which just ran has written; None if no pass writes any."""
        if not self.written:
            return None
        return _way_back([(m.__dict__, key, m.__dict__[key]) for m, key in self.written if key in m.__dict__])


class Look:
    """A model before its first clean pass.

    Args:
        memory: where to note what moves.
        layout: its modules; those whose statistics are held anyway are left out.
        inputs: what it is called with.
    """

    def __init__(self, memory: Memory, layout: Layout, inputs: Any) -> None:
        self.memory = memory
        still = set(map(id, layout.moving))
        self.modules = [
            (name, module)
            for name, module in layout.members
            if still.isdisjoint(map(id, (module, *module._forward_pre_hooks.values())))
        ]
        self.buffers = [(m, key, b, _version(b), b.detach().clone()) for m, key, b in self._buffers()]
        marks = Marks()
        self.attributes = {(m, key): marks.of(value) for _, m, key, value in self._attributes()}
        self.inputs = [(x, marks.of(x)) for x in tree_leaves(inputs)]
        self._alive = marks  # what is gone now would leave its address to what comes instead

    def _buffers(self) -> Iterator[tuple[nn.Module, str, Tensor]]:
        for _, module in self.modules:
            for key, value in module._buffers.items():
                if value is not None:
                    yield module, key, value

    def _attributes(self) -> Iterator[tuple[str, nn.Module, str, Any]]:
        for name, module in self.modules:
            if not type(module).__module__.startswith(_OURS):
                for key, value in module.__dict__.items():
                    if key not in _INTERNAL:
                        yield name, module, key, value

    def held(self) -> Held | None:
        """After the clean pass: the buffers that it moved, as they were before."""
        moved = [
            (module, key, value)
            for module, key, buffer, version, value in self.buffers
            if module._buffers.get(key) is not buffer or _version(buffer) != version
        ]
        known = {(module, key) for module, key, _ in moved} | set(self.memory.moving)
        self.memory.moving = tuple(place for place in ((m, key) for m, key, *_ in self.buffers) if place in known)
        return Held(tuple(moved)) if moved else None

    def changed(self) -> list[str]:
        """Names of what is no longer as it was: attributes, or inputs."""
        marks = Marks()
        written = [
            (name, module, key)
            for name, module, key, value in self._attributes()
            if marks.of(value) != self.attributes.get((module, key))
        ]
        self.memory.written |= {(module, key) for _, module, key in written}
        if any(marks.of(x) != mark for x, mark in self.inputs):
            return ["its inputs"]
        return [f"{name or type(module).__name__}.{key}" for name, module, key in written]

    def keep(self) -> Undo:
        """The way back to the attributes of now."""
        return _way_back([(module.__dict__, key, value) for _, module, key, value in self._attributes()])

    def compare(self, names: list[str], first: Tensor, second: Tensor) -> None:
        """Refuse a model that answered differently the second time, on the same inputs and with the same random numbers.

        Args:
            names: what the first call changed.
            first: what the model answered.
            second: what it answered then.
        """
        if first.shape == second.shape:
            first, second = first.detach(), second.detach()
            if not first.is_floating_point():
                apart = (first != second).any()
            else:
                eps = torch.finfo(first.dtype).eps
                apart = (first - second).abs().amax() > min(1e3 * eps, 0.05) * first.abs().amax()
            if not bool(apart):  # NaN is not apart: it has a check of its own
                return
        if "its inputs" in names:
            raise RuntimeError(
                "the model changes its inputs in place, so every pass after the clean one would see other inputs: work on a copy in "
                "its forward, x = x - mean instead of x -= mean"
            )
        raise RuntimeError(
            f"the model gives other outputs when it runs again on the same inputs, and changes {', '.join(names[:4])} in each call: a "
            "perturbed pass would begin where the clean one ended. Hand it over as an input, set it anew in every forward, or draw "
            "from torch's own generators"
        )


def _way_back(now: list[tuple[dict[str, Any], str, Any]]) -> Undo:
    def undo() -> None:
        for attributes, key, value in now:
            attributes[key] = value

    return undo


def _version(x: Tensor) -> int:
    return -1 if x.is_inference() else x._version


class Marks:
    """Makes of a value something that differs when it has been replaced or changed in place, a few objects deep."""

    def __init__(self) -> None:
        # The values too: while they live, so do their addresses.
        self.known: dict[tuple[int, int], tuple[Any, Any]] = {}

    def of(self, value: Any, depth: int = _DEPTH) -> Any:
        key = id(value), depth
        if key not in self.known:
            self.known[key] = value, None  # in a circle the address has to do
            self.known[key] = value, self._made(value, depth)
        return key, self.known[key][1]

    def _made(self, value: Any, depth: int) -> Any:
        if isinstance(value, Tensor):
            return _version(value)
        if isinstance(value, torch.Generator):
            return value.get_state().tolist()
        if type(value).__module__.partition(".")[0] in ("numpy", "random"):  # arrays and generators
            return _pickled(value)
        inside = list(_inside(value)) if depth else []
        return [self.of(x, depth - 1) for x in inside] if len(inside) <= _MANY else len(inside)


def _inside(value: Any) -> Iterator[Any]:
    """What a container or a plain object holds."""
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        yield from value
    if isinstance(value, _OPAQUE):
        return
    try:
        yield from vars(value).values()
    except TypeError:  # a number, a string, or one with slots
        return


def _pickled(value: Any) -> bytes | None:
    try:
        return pickle.dumps(value)
    except Exception:  # somebody's own, which need not be picklable
        return None
