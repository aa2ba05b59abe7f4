"""Run a model with values placed at sites, and see what stands there."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.utils._pytree import tree_leaves

from ..nn.matching import walk
from ..sites.site import EVERYWHERE, Site, Slot, Undo
from .randomness import RandomState, current, devices_of, drawing_from, fresh
from .replay import Tape, inside_checkpoint, recording, replaying

Placement = Tensor | Sequence[Tensor] | Mapping[str, Tensor] | Callable[[Slot], Tensor]
Valid = Callable[[str, Tensor, Tensor | None], Tensor | None]


@dataclass(frozen=True)
class Arguments:
    """Positional and keyword arguments together."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def call(model: nn.Module, inputs: Any) -> Any:
    """`model(inputs)`: a tuple gives positional arguments, a mapping keyword arguments, anything else one argument."""
    if isinstance(inputs, Arguments):
        return model(*inputs.args, **inputs.kwargs)
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


@contextmanager
def still_statistics(model: nn.Module, layout: "Layout | None" = None) -> Iterator[None]:
    """Batch statistics are used as the mode says, but the running averages do not move."""
    candidates = _norms(model) if layout is None else layout.norms
    norms = [m for m in candidates if isinstance(m, _BatchNorm) and m.training and m.track_running_stats]
    momenta = [(m, m.momentum) for m in candidates if isinstance(m, _InstanceNorm) and m.training]
    for norm in norms:
        norm.track_running_stats = False
    for instance, _ in momenta:
        instance.momentum = 0.0
    try:
        yield
    finally:
        for norm in norms:
            norm.track_running_stats = True
        for instance, momentum in momenta:
            instance.momentum = momentum


def _norms(model: nn.Module) -> tuple[nn.Module, ...]:
    return tuple(m for m in model.modules() if isinstance(m, _BatchNorm | _InstanceNorm))


@dataclass(frozen=True)
class Layout:
    """Where passes must act, looked up once and kept until the model's modules change: a large model takes long to search."""

    members: tuple[tuple[str, nn.Module], ...]
    norms: tuple[nn.Module, ...]
    matches: dict[Site, dict[str, nn.Module]]

    @classmethod
    def of(cls, model: nn.Module, sites: Sequence[Site], known: "Layout | None" = None) -> "Layout":
        """Look, unless `known` says the same of the same modules."""
        members = tuple(walk(model))
        if known is not None and known.members == members and all(site in known.matches for site in sites):
            return known
        return cls(members, _norms(model), {site: site.modules(model) for site in sites})


@contextmanager
def _no_fast_path() -> Iterator[None]:
    """torch's fused transformer layer skips its inner modules in evaluation, and with them every site inside."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


@dataclass
class Pass:
    """One forward pass: which sites are installed, what is placed at them, and what was seen there.

    Attributes:
        model: the network.
        sites: every site to install; those without a placement behave as in a clean pass.
        placements: what to put at a site: one tensor per firing, in order, or by slot name, or a function of the slot.
        tapes: tapes that close when one of their sites fires (clean pass).
        valid: finds the padding mask of a slot, given the one that the site itself knows.
        devices: where random numbers may be drawn; found from the model if not given.
        layout: where the sites and normalisation layers are; found from the model if not given.
    """

    model: nn.Module
    sites: Sequence[Site]
    placements: Mapping[Site, Placement] = field(default_factory=dict)
    tapes: Sequence[Tape] = ()
    valid: Valid | None = None
    devices: tuple[torch.device, ...] = ()
    layout: Layout | None = None
    slots: dict[Site, list[Slot]] = field(default_factory=dict)
    checkpointed: bool = False
    aside: RandomState | None = None
    span: tuple[int, int] = (0, 0)

    def run(
        self,
        inputs: Any,
        *,
        noise: RandomState | None = None,
        replay: Tape | None = None,
        replay_noise: bool = True,
        attached: bool = True,
        clean: bool = False,
    ) -> Any:
        """Call the model.

        Args:
            inputs: a tensor, tuple, mapping or `Arguments`.
            noise: random state to draw from, put back afterwards; None draws on.
            replay: a tape whose modules need not run again.
            replay_noise: the pass repeats the noise of the pass on the tape.
            attached: replayed outputs keep their graph.
            clean: batch-norm statistics move, and every site must be reached.
        """
        self.slots = {site: [] for site in self.sites}
        if any(callable(placement) for placement in self.placements.values()):
            self.aside = fresh(self.devices or devices_of(self.model))
        start = _sequence_number()
        with ExitStack() as stack:
            stack.enter_context(drawing_from(noise))
            if self.sites:
                stack.enter_context(_no_fast_path())
            stack.enter_context(nullcontext() if clean else still_statistics(self.model, self.layout))
            stack.enter_context(installed(self.model, self.sites, self.visit, self.layout))
            stack.enter_context(recording(self.model, self.tapes, self.devices or devices_of(self.model)))
            stack.enter_context(replaying(replay, attached, replay_noise))
            outputs = call(self.model, inputs)
        self.span = (start, _sequence_number())
        for site in self.sites if clean else self.placements:
            self._check(site)
        return outputs

    def visit(self, site: Site, name: str, value: Tensor, valid: Tensor | None) -> Tensor:
        for tape in self.tapes:
            if site in tape.sites:
                tape.close()
        seen = self.slots[site]
        times = sum(slot.name.partition("#")[0] == name for slot in seen)
        label = f"{name}#{times}" if times else name
        if self.valid is not None:
            valid = self.valid(label, value, valid)
        valid = None if valid is EVERYWHERE else valid
        slot = Slot(label, value, valid)
        seen.append(slot)
        self.checkpointed |= inside_checkpoint()
        if site in self.placements:
            with self._drawing_aside():
                slot.placed = _pick(site, self.placements[site], slot, len(seen) - 1)
        return placed_value(site, value, slot.placed)

    @contextmanager
    def _drawing_aside(self) -> Iterator[None]:
        """Placements that draw use a stream of their own: a checkpointed region must meet the same noise when it runs again."""
        if self.aside is None:
            yield
            return
        with drawing_from(self.aside):
            yield
            self.aside = current(tuple(self.aside.states))

    def revisit(self, site: Site, name: str, value: Tensor) -> Tensor:
        """The same placement again, while a checkpointed region of this pass is recomputed."""
        slots = [slot for slot in self.slots[site] if slot.name.partition("#")[0] == name]
        if len(slots) != 1:
            raise RuntimeError(
                f"{name} runs {len(slots)} times in a pass: gradient checkpointing cannot tell the calls apart"
            )
        return placed_value(site, value, slots[0].placed)

    def _check(self, site: Site) -> None:
        count = len(self.slots[site])
        if not count:
            raise RuntimeError(f"{site} was never reached: the modules it matches did not run in this pass")
        placement = self.placements.get(site)
        if isinstance(placement, Sequence) and len(placement) != count:
            raise ValueError(f"{site} fired {count} times but {len(placement)} values were given for it")


def placed_value(site: Site, value: Tensor, placed: Tensor | None) -> Tensor:
    if placed is None:
        return value
    try:  # asking torch takes long, and the shapes are nearly always the same
        shape = value.shape if placed.shape == value.shape else torch.broadcast_shapes(value.shape, placed.shape)
    except RuntimeError:
        shape = None
    if site.kind == "additive":
        if shape != value.shape:
            raise ValueError(
                f"{site} holds shape {tuple(value.shape)}; a perturbation of shape {tuple(placed.shape)} does not fit"
            )
        return value + placed.to(value.dtype)
    if shape is None:
        raise ValueError(f"{site} takes a mask of shape {tuple(value.shape)}, got {tuple(placed.shape)}")
    return placed


def _pick(site: Site, placement: Placement, slot: Slot, index: int) -> Tensor | None:
    if isinstance(placement, Tensor):
        if index:
            raise ValueError(f"{site} fires more than once ({slot.name} too): give a list or a dict of tensors by name")
        return placement
    if isinstance(placement, Mapping):
        return placement.get(slot.name)
    if callable(placement):
        return placement(slot)
    return placement[index] if index < len(placement) else None


def _sequence_number() -> int:
    """The number autograd would give a node made now; nodes of one pass lie between two such numbers."""
    ask = getattr(torch._C._autograd, "_get_sequence_nr", None)
    if ask is not None:
        return int(ask())
    with torch.enable_grad():
        node = torch.zeros((), requires_grad=True).view(()).grad_fn
    assert node is not None
    return node._sequence_nr()


@contextmanager
def installed(
    model: nn.Module,
    sites: Sequence[Site],
    visit: Callable[[Site, str, Tensor, Tensor | None], Tensor],
    layout: Layout | None = None,
) -> Iterator[None]:
    """Hooks of all sites on, for the length of the block; off again whatever happens inside."""
    undo: list[Undo] = []
    try:
        for site in sites:

            def at(name: str, value: Tensor, valid: Tensor | None = None, site: Site = site) -> Tensor:
                return visit(site, name, value, valid)

            matches = site.modules(model) if layout is None else layout.matches[site]
            for name, module in matches.items():
                undo.append(site.install(name, module, at))
        yield
    finally:
        for off in reversed(undo):
            off()


class Recomputation:
    """Puts the sites back while backward recomputes gradient-checkpointed regions of earlier passes.

    Checkpointing runs a region again during backward, long after the hooks of its pass are gone. When the gradient of a
    checkpointed pass reaches the pass's outputs, the sites are installed once more until that backward ends; each recomputed
    firing finds its pass by the number of the autograd node that asked for it.
    """

    def __init__(self, model: nn.Module, sites: Sequence[Site]) -> None:
        self.model, self.sites = model, sites
        self.passes: list[Pass] = []
        self._active: ExitStack | None = None

    def watch(self, done: Pass, outputs: Any) -> None:
        if done.checkpointed:
            self.passes.append(done)
            for tensor in tree_leaves(outputs):
                if isinstance(tensor, Tensor) and tensor.requires_grad:
                    tensor.register_hook(self._enter)

    def _enter(self, gradient: Tensor) -> None:
        if self._active is None:
            self._active = ExitStack()
            self._active.enter_context(still_statistics(self.model))
            self._active.enter_context(installed(self.model, self.sites, self._revisit))
            torch.autograd.Variable._execution_engine.queue_callback(self._exit)

    def _exit(self) -> None:
        if self._active is not None:
            self._active.close()
            self._active = None

    def _revisit(self, site: Site, name: str, value: Tensor, valid: Tensor | None) -> Tensor:
        node = torch._C._current_autograd_node()
        number = -1 if node is None else node._sequence_nr()
        for done in self.passes:
            if done.span[0] <= number < done.span[1]:
                return done.revisit(site, name, value)
        return value


def perturbed_call(
    model: nn.Module, placements: Mapping[Site, Placement], *args: Any, record: bool = False, **kwargs: Any
) -> Any:
    """Call a model with values placed at sites; nothing stays behind on the model.

    >>> import sparring as sp
    >>> model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    >>> x = torch.ones(1, 2)
    >>> outputs, seen = sp.perturbed_call(model, {sp.Output("0"): torch.zeros(1, 2)}, x, record=True)
    >>> list(seen[sp.Output("0")])
    ['0']

    Args:
        model: any module, ours or not.
        placements: site -> a tensor, one tensor per firing, tensors by slot name, or a function of the `Slot`. Additive sites
            add it, mask sites use it as the multiplier. A site that maps to an empty dict is only watched.
        args: positional arguments of the model.
        record: also return what stands at each site (before the perturbation), by site and slot name.
        kwargs: keyword arguments of the model.
    """
    one = Pass(model, tuple(placements), placements)
    outputs = one.run(Arguments(args, kwargs), clean=True)
    if not record:
        return outputs
    return outputs, {site: {slot.name: slot.value for slot in slots} for site, slots in one.slots.items()}
