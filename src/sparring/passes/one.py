"""One pass: run a model with values placed at sites, and see what stands there."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from ..nn.randomness import RandomState, Watch, current, devices_of, drawing_from, fresh
from ..sites.site import EVERYWHERE, Site, Slot, Undo, undo_all
from .alone import alone
from .layout import Layout, Stillness, slow_path
from .memory import Held
from .recomputation import Recomputation, inside_checkpoint
from .replay import recording, replaying
from .tape import Tape

Placement = Tensor | Sequence[Tensor] | Mapping[str, Tensor] | Callable[[Slot], Tensor]
Valid = Callable[[str, Tensor, Tensor | None, str], Tensor | None]


@dataclass(frozen=True)
class Arguments:
    """Positional and keyword arguments together."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @classmethod
    def of(cls, inputs: Any) -> "Arguments":
        """A tuple gives positional arguments, a mapping keyword arguments, anything else one argument."""
        if isinstance(inputs, Arguments):
            return inputs
        if isinstance(inputs, Mapping):
            return cls((), dict(inputs))
        return cls(inputs if isinstance(inputs, tuple) else (inputs,), {})


def call(model: nn.Module, inputs: Any) -> Any:
    """`model(inputs)`, with the inputs as `Arguments.of` reads them."""
    if isinstance(inputs, Tensor):
        return model(inputs)
    given = Arguments.of(inputs)
    return model(*given.args, **given.kwargs)


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
        sides: modules from which on everything belongs to the "source" or the "target" of a model with both.
        held: buffers that move by themselves, as the clean pass found them.
    """

    model: nn.Module
    sites: Sequence[Site]
    placements: Mapping[Site, Placement] = field(default_factory=dict)
    tapes: Sequence[Tape] = ()
    valid: Valid | None = None
    devices: tuple[torch.device, ...] = ()
    layout: Layout | None = None
    sides: Mapping[nn.Module, str] = field(default_factory=dict)
    held: Held | None = None
    slots: dict[Site, list[Slot]] = field(default_factory=dict)
    aside: RandomState | None = None
    _side: str = "source"
    _clean: bool = False

    def run(
        self,
        inputs: Any,
        *,
        noise: RandomState | None = None,
        watch: Watch | None = None,
        replay: Tape | None = None,
        replay_noise: bool = True,
        attached: bool = True,
        clean: bool = False,
    ) -> Any:
        """Call the model.

        Args:
            inputs: a tensor, tuple, mapping or `Arguments`.
            noise: random state to draw from, put back afterwards; None draws on.
            watch: begun before the pass, for its tapes.
            replay: a tape whose modules need not run again.
            replay_noise: the pass repeats the noise of the pass on the tape.
            attached: replayed outputs keep their graph.
            clean: statistics move, and every site must be reached.
        """
        layout = self.layout or Layout.of(self.model, self.sites)
        self.layout, self._clean = layout, clean
        self.slots = {site: [] for site in self.sites}
        self.aside = None
        for placement in self.placements.values():
            if callable(placement):
                self.aside = fresh(self.devices or devices_of(self.model))
                break
        undo: list[Undo] = [alone(self.model)]
        try:  # only what this pass needs: each of these costs as much as a small layer
            if noise is not None:
                undo.append(noise.take_over())
            if self.sites and layout.fused:
                undo.append(slow_path())
            if layout.moving:
                self._watch_moving(undo, hold=not clean)
            if self.held is not None:
                self._hold(undo, self.held, clean)
            for module, side in self.sides.items() if self.sites else ():
                self._watch_side(undo, module, side)
            for site, seen in self.slots.items():  # looked up once: a site is hashed by its fields
                visit = partial(self.visit, site, seen, self.placements.get(site))
                met = site.meet(self.model, inputs, visit)
                if met is None:
                    for name, module in layout.matches[site].items():
                        undo.append(site.install(name, module, visit))
                else:
                    inputs = met
            if self.tapes and watch is not None:
                undo.append(recording(self.model, self.tapes, watch))
            if replay is not None:
                undo.append(replaying(replay, attached, replay_noise))
            outputs = call(self.model, inputs)
        except RuntimeError as error:
            explained = _explained(error)
            if explained is error:
                raise
            raise explained from error
        finally:
            undo_all(undo)
        self._check(clean)
        return outputs

    def visit(
        self,
        site: Site,
        seen: list[Slot],
        placement: Placement | None,
        name: str,
        value: Tensor,
        valid: Tensor | None = None,
        words: Tensor | None = None,
    ) -> Tensor:
        for tape in self.tapes:
            if site in tape.sites:
                tape.close()
        times = sum(slot.module == name for slot in seen) if seen else 0
        label = f"{name}#{times}" if times else name
        if self.valid is not None:
            valid = self.valid(label, value, valid, self._side)
        valid = None if valid is EVERYWHERE else valid
        slot = Slot(label, value, valid, words=words)
        seen.append(slot)
        if inside_checkpoint():
            region = self._again.enter()
            if region is not None:
                region.append((site, slot))
        if placement is None:
            return value
        if self.aside is None:
            slot.placed = _pick(site, placement, slot, len(seen) - 1)
        else:
            slot.placed = self._drawn_aside(site, slot, len(seen) - 1)
        return placed_value(site, value, slot.placed)

    def _drawn_aside(self, site: Site, slot: Slot, index: int) -> Tensor | None:
        """Placements that draw use a stream of their own: a checkpointed region must meet the same noise when it runs again."""
        assert self.aside is not None
        with drawing_from(self.aside):
            placed = _pick(site, self.placements[site], slot, index)
            self.aside = current(tuple(self.aside.states))
        return placed

    @cached_property
    def _again(self) -> Recomputation:
        return Recomputation(self._conditions, placed_value)

    def _watch_moving(self, undo: list[Undo], hold: bool) -> None:
        """Statistics stand still where asked, and never move a second time while a checkpointed region is recomputed."""
        assert self.layout is not None
        if hold:
            held = Stillness(self.layout.moving)
            undo.append(held.end)
            held.begin()

        for part in self.layout.moving:
            if isinstance(part, nn.Module):
                undo.append(part.register_forward_pre_hook(self._entered).remove)

    def _hold(self, undo: list[Undo], held: Held, clean: bool) -> None:
        """The same for buffers of somebody's own layers."""
        if not clean:
            undo.append(held.put())
        for module in dict.fromkeys(module for module, _, _ in held.found):
            undo.append(module.register_forward_pre_hook(self._entered).remove)

    def _entered(self, module: nn.Module, args: object) -> None:
        self._again.enter()

    def _watch_side(self, undo: list[Undo], module: nn.Module, side: str) -> None:
        """What follows the decoder (the layer that makes logits of its states) still belongs to the target."""

        def before(_: nn.Module, args: object) -> None:
            self._side = side

        undo.append(module.register_forward_pre_hook(before).remove)

    @contextmanager
    def _conditions(self, visit: Callable[..., Tensor]) -> Iterator[None]:
        """Under which a checkpointed region of this pass runs again."""
        assert self.layout is not None
        undo: list[Undo] = [alone(self.model)]
        try:
            held = Stillness(self.layout.moving, put_back=self._clean)
            undo.append(held.end)
            held.begin()
            if self.held is not None:
                undo.append(self.held.put())
            for site in self.sites:
                for name, module in self.layout.matches[site].items():
                    undo.append(site.install(name, module, partial(visit, site)))
            yield
        finally:
            undo_all(undo)

    def _check(self, clean: bool) -> None:
        for site, seen in self.slots.items():
            if not seen and (clean or site in self.placements):
                found = list(self.layout.matches[site])[:4] if self.layout else []
                names = ", ".join(name or "the model" for name in found)
                raise RuntimeError(f"{site} was never reached: what it matches ({names}) did not run in this pass")
        for site, placement in self.placements.items():
            count = len(self.slots[site])
            if isinstance(placement, list | Sequence) and len(placement) != count:
                raise ValueError(f"{site} fired {count} times but {len(placement)} values were given for it")


def _explained(error: RuntimeError) -> RuntimeError:
    if "can only change requires_grad flags of leaf" not in str(error):
        return error
    return RuntimeError(
        "the model sets requires_grad on what is placed at a site, which torch allows for plain inputs only: perturb the output of a "
        "later module, or, for speech models of Hugging Face, call model.freeze_feature_encoder() first"
    )


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
        return site.added(value, placed if placed.dtype == value.dtype else placed.to(value.dtype))
    if shape is None:
        raise ValueError(f"{site} takes a mask of shape {tuple(value.shape)}, got {tuple(placed.shape)}")
    return placed


def _pick(site: Site, placement: Placement, slot: Slot, index: int) -> Tensor | None:
    if isinstance(placement, list | Sequence):  # a list first: asking an abstract class takes long
        return placement[index] if index < len(placement) else None
    if isinstance(placement, Tensor):
        if index:
            raise ValueError(f"{site} fires more than once ({slot.name} too): give a list or a dict of tensors by name")
        return placement
    return placement.get(slot.name) if isinstance(placement, Mapping) else placement(slot)


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
