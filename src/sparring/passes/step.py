"""One evaluation of an objective: the clean pass, and every perturbed pass that its terms ask for."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..nn.matching import pattern
from ..nn.recurrent.projection import shared_projections
from ..penalties import per_example
from ..sites.input import holds_nan
from ..sites.site import Site, Slot
from .calls import Layout, Pass, Placement, Recomputation
from .randomness import RandomState, current
from .replay import Tape

Graph = Literal["attached", "detached", "none"]
ValidMask = Tensor | Mapping[str, Tensor] | None


def logits_of(outputs: Any) -> Tensor:
    """The tensor to compare: the output itself, its `.logits`, or its "logits" entry."""
    if isinstance(outputs, Tensor):
        return outputs
    found = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", None)
    if isinstance(found, Tensor):
        return found
    raise TypeError(
        f"the model returns {type(outputs).__name__}: pass outputs=, a function from it to the tensor of outputs"
    )


@dataclass
class Step:
    """What a term may use while it plays.

    Attributes:
        model: the network.
        inputs: as given to the objective.
        targets: as given, or None (unlabelled).
        sites: every site of the objective.
        valid: padding masks, as given.
        number: how many training steps came before.
        cache: a place for anything worth sharing between passes of this step.
        outputs: clean outputs, with their graph.
        losses: clean loss per example (B,), or None without targets.
    """

    model: nn.Module
    inputs: Any
    targets: Any
    sites: Sequence[Site]
    supervised: Callable[..., Tensor]
    extract: Callable[[Any], Tensor]
    valid: ValidMask
    devices: tuple[torch.device, ...]
    number: int = 0
    tapes: dict[frozenset[Site], Tape] = field(default_factory=dict)
    cache: dict[Any, Any] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)
    forward_passes: int = 0
    backward_passes: int = 0
    known: Layout | None = None
    noise: RandomState | None = None
    clean: Pass | None = None
    last: Pass | None = None
    _outputs: Tensor | None = None
    _losses: Tensor | None = None
    _raw: Any = None

    def __post_init__(self) -> None:
        self.recomputation = Recomputation(self.model, self.sites)
        self.layout = Layout.of(self.model, self.sites, self.known)

    # -- the clean pass ---------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Run the clean pass and remember its random state, its outputs and what stood at the sites."""
        self.noise = current(self.devices)
        tapes = tuple(self.tapes.values())
        self.clean = Pass(self.model, self.sites, {}, tapes, self._mask_of, self.devices, self.layout)
        self.forward_passes += 1
        with shared_projections(self.cache):
            raw = self.clean.run(self.inputs, clean=True)
        self.recomputation.watch(self.clean, raw)
        self._raw = raw
        self._outputs = self._extracted(raw)
        if self.targets is not None:
            self._losses = self.loss(self._outputs)
            if bool(torch.isnan(self._losses.detach()).any()) and holds_nan(self.inputs):
                raise ValueError("the inputs contain NaN: clean or drop those examples before training on them")
        for site, slots in self.clean.slots.items():
            for slot in slots:
                if slot.value.shape[:1] != (self.batch,):
                    raise ValueError(
                        f"{site} holds shape {tuple(slot.value.shape)} at {slot.name} for a batch of {self.batch}: perturbations "
                        "are per example, dimension 0; for time-major layers pass batch_dim=1, and leave out what the batch shares"
                    )

    @property
    def outputs(self) -> Tensor:
        assert self._outputs is not None, "the clean pass has not run"
        return self._outputs

    @property
    def raw(self) -> Any:
        """What the model itself returned in the clean pass."""
        return self._raw

    @property
    def losses(self) -> Tensor | None:
        return self._losses

    @property
    def batch(self) -> int:
        return self.outputs.shape[0]

    def slots(self, site: Site) -> list[Slot]:
        """What stood at a site in the clean pass, with its graph."""
        assert self.clean is not None
        return self.clean.slots[site]

    # -- later passes -----------------------------------------------------------------------------------------

    def run(
        self,
        placements: Mapping[Site, Placement],
        *,
        graph: Graph = "attached",
        noise: RandomState | Literal["shared"] | None = "shared",
        replay: bool = True,
        raw: bool = False,
        moves_statistics: bool = False,
    ) -> Any:
        """One more pass with values placed at sites; the modules before the first of them are replayed, not run.

        Args:
            placements: site -> values, as in `perturbed_call`.
            graph: "attached" keeps the graph back to all parameters, "detached" cuts it before the sites, "none" builds none.
            noise: "shared" repeats the clean pass's noise; a `RandomState` uses that; None draws on.
            replay: allow prefix replay.
            raw: return what the model returned instead of its tensor of outputs.
            moves_statistics: batch-norm averages move, for the one pass of a step that stands in for the clean pass.
        """
        state = self.noise if noise == "shared" else noise
        tape = self.tapes.get(frozenset(placements)) if replay else None
        if tape is not None and state is not self.noise and not tape.noise_free:
            tape = None
        one = Pass(self.model, self.sites, placements, (), self._mask_of, self.devices, self.layout)
        self.forward_passes += 1
        with torch.no_grad() if graph == "none" else nullcontext(), shared_projections(self.cache):
            outputs = one.run(
                self.inputs,
                noise=state,
                replay=tape,
                attached=graph == "attached",
                replay_noise=state is self.noise,
                clean=moves_statistics,
            )
        self.recomputation.watch(one, outputs)
        self.last = one
        return outputs if raw else self._extracted(outputs)

    def loss(self, outputs: Tensor) -> Tensor:
        """Supervised loss per example (B,)."""
        return self.charged(self.supervised, outputs, self.targets, outputs)

    def penalty(self, penalty: Callable[..., Tensor], clean: Tensor, perturbed: Tensor) -> Tensor:
        """A penalty per example (B,)."""
        return self.charged(penalty, clean, perturbed, perturbed)

    def charged(self, function: Callable[..., Tensor], first: Any, second: Any, outputs: Tensor) -> Tensor:
        mask = self._mask_of("outputs", outputs)
        takes_valid = mask is not None and _takes_valid(function)
        values = function(first, second, valid=mask) if takes_valid else function(first, second)
        name = getattr(function, "__name__", str(function))
        if not isinstance(values, Tensor) or values.dim() == 0:
            raise ValueError(
                f"{name} returned one number for the batch; an objective needs one per example, shape ({outputs.shape[0]},)"
            )
        if values.shape[0] != outputs.shape[0]:
            raise ValueError(f"{name} returned shape {tuple(values.shape)} for {outputs.shape[0]} examples")
        return per_example(values, None if takes_valid else mask)

    def note(self, term: str, **values: Any) -> None:
        """Keep diagnostics of a term; tensors become floats when they are read."""
        self.notes.update({f"{term}/{key}": value for key, value in values.items()})

    # -- inside -----------------------------------------------------------------------------------------------

    def _extracted(self, outputs: Any) -> Tensor:
        tensor = self.extract(outputs)
        if tensor.dim() == 0:
            raise ValueError("the model returns a single number; an objective needs outputs with one row per example")
        if tensor.shape[0] == 0:
            raise ValueError("the batch is empty: an objective needs at least one example")
        return tensor

    def _mask_of(self, name: str, value: Tensor, own: Tensor | None = None) -> Tensor | None:
        """The padding mask of a slot (or of the outputs), shaped to broadcast against it.

        One given by name counts before the one a site knows itself, and that before one given for everything.
        """
        mask = self.valid
        if isinstance(mask, Mapping):
            mask = next((m for glob, m in mask.items() if pattern(glob).fullmatch(name.partition("#")[0])), None)
            if mask is None:
                return own
        elif own is not None:
            return own
        elif mask is None or value.dim() < 2 or value.shape[: mask.dim()] != mask.shape:
            return None
        elif value.dim() == mask.dim() and name != "input":
            return (
                None  # (B, units) that happens to have the mask's shape; only the model's own input is (B, T) by itself
            )
        mask = mask.bool()
        if name == "outputs":
            return mask if value.dim() > mask.dim() else None
        if value.shape[: mask.dim()] != mask.shape:
            raise ValueError(
                f"valid mask of shape {tuple(mask.shape)} does not fit {name} of shape {tuple(value.shape)}"
            )
        return mask.view(*mask.shape, *(1,) * (value.dim() - mask.dim()))


def _takes_valid(function: Callable[..., Any]) -> bool:
    return "valid" in inspect.signature(function).parameters
