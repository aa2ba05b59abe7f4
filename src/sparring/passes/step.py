"""One evaluation of an objective: the clean pass, and every perturbed pass that its terms ask for."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..nn.randomness import RandomState, Watch
from ..sites.input import holds_nan
from ..sites.site import Site, Slot, Undo
from .alone import alone as only_one_thread
from .charge import charge
from .layout import Layout
from .masks import Masks
from .means import Items, Means, Reduction
from .memory import Held, Look, Memory
from .one import Pass, Placement, call
from .replay import is_compiled
from .tape import Tape

Graph = Literal["attached", "detached", "none"]
_NOTHING = nullcontext()


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
        masks: which positions count.
        number: how many training steps came before.
        labelled: how many of the examples, the first ones, have targets; None for all of them (or none).
        reduction: "examples" (every example counts the same) or "tokens" (every position does).
        items: "ranks" divides sums by the mean number of examples or tokens over all processes, anything else by that of this batch.
        memory: what the objective knows of the model's own memory.
        left: the way back to what the first pass wrote into the model's attributes.
        cache: a place for anything worth sharing between passes of this step.
        notes: diagnostics, by key; a function is asked when they are read.
        speaker: the name of the term that plays now.
        means: how charges are averaged.
    """

    model: nn.Module
    inputs: Any
    targets: Any
    sites: Sequence[Site]
    supervised: Callable[..., Tensor]
    extract: Callable[[Any], Tensor]
    masks: Masks
    devices: tuple[torch.device, ...]
    layout: Layout
    sides: Mapping[nn.Module, str] = field(default_factory=dict)
    number: int = 0
    labelled: int | None = None
    reduction: Reduction = "examples"
    items: Items = None
    tapes: dict[frozenset[Site], Tape] = field(default_factory=dict)
    cache: dict[Any, Any] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)
    speaker: str = ""
    forward_passes: int = 0
    backward_passes: int = 0
    memory: Memory = field(default_factory=Memory)
    held: Held | None = None
    left: Undo | None = None
    noise: RandomState | None = None
    clean: Pass | None = None
    last: Pass | None = None
    _outputs: Tensor | None = None
    _losses: Tensor | None = None
    _raw: Any = None
    _latest: Tensor | None = None
    _known: tuple[Tensor | None, float] = (None, 0.0)

    def __post_init__(self) -> None:
        self.means = Means(self.masks, self.targets, self.supervised, self.labelled, self.reduction, self.items)
        self._sharing = [site for site in self.sites if type(site).sharing is not Site.sharing] if self.sites else ()

    # -- the clean pass ---------------------------------------------------------------------------------------

    def begin(self, alone: bool = False) -> None:
        """Run the clean pass and remember its random state, its outputs and what stood at the sites.

        Args:
            alone: no other pass follows, so nothing random needs to be remembered.
        """
        before: Look | Held | None = None
        if alone and not self.sites:
            self.forward_passes += 1
            leave = only_one_thread(self.model)
            try:
                raw = call(self.model, self.inputs)
            finally:
                leave()
        else:
            before = self.memory.begin(self.model, self.layout, self.inputs)
            self.held = before if isinstance(before, Held) else None
            watch = Watch(self.devices)
            self.clean = self._pass({}, tuple(self.tapes.values()))
            raw = self._run(self.clean, clean=True, watch=watch)
            self.noise = watch.moved()
            if isinstance(before, Look):
                self.held = self.clean.held = before.held()
        self._raw = raw
        self._outputs = self._extracted(raw)
        if isinstance(before, Look):
            self._run_again(before, self._outputs, {}, self.noise)
        self.left = self.memory.left()
        if self.targets is not None:
            self._losses = self.loss(self._outputs)
        batch = self._outputs.shape[0]
        for site, slots in self.clean.slots.items() if self.clean is not None else ():
            for slot in slots:
                if (slot.value.dim() == 0 or slot.value.shape[0] != batch) and not site.shared:
                    raise ValueError(
                        f"{site} holds shape {tuple(slot.value.shape)} at {slot.name} for a batch of {batch}: one row per "
                        "example is needed; time-major layers are Output(name, batch_dim=1), and what the batch shares is left out"
                    )

    @property
    def outputs(self) -> Tensor:
        """Clean outputs, with their graph."""
        assert self._outputs is not None, "the clean pass has not run"
        return self._outputs

    @property
    def raw(self) -> Any:
        """What the model itself returned in the clean pass."""
        return self._raw

    @property
    def losses(self) -> Tensor | None:
        """Clean loss of each labelled example, or None without targets."""
        return self._losses

    def clean_loss(self) -> Tensor | None:
        """Their mean.

        NaN inputs are told from NaN of the model's own. Not on accelerators: asking would make the host wait for the device.
        """
        if self._losses is None:
            return None
        mean = self.average(self._losses)
        if len(self.devices) == 1 and mean.is_cpu:
            self._known = mean, mean.item()
            if math.isnan(self._known[1]) and holds_nan(self.inputs):
                raise ValueError("the inputs contain NaN: clean or drop those examples before training on them")
        return mean

    def value(self, scalar: Tensor) -> Tensor | float:
        """A scalar for the diagnostics: without its graph, and as a number where that has been asked for anyway."""
        known, number = self._known
        return number if known is scalar else scalar.detach()

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
        state = self.noise if isinstance(noise, str) else noise
        tape = self.tapes.get(frozenset(placements)) if replay and self.tapes else None
        if tape is not None and (not tape.entries or not (state is self.noise or tape.noise_free)):
            tape = None
        one = self.last = self._pass(placements, ())
        with torch.no_grad() if graph == "none" else _NOTHING:
            outputs = self._run(
                one,
                noise=state,
                replay=tape,
                attached=graph == "attached",
                replay_noise=state is self.noise,
                clean=moves_statistics,
            )
        return outputs if raw else self._extracted(outputs)

    def run_first(self, placements: Mapping[Site, Placement], noise: RandomState) -> Tensor:
        """The outputs of a perturbed pass that stands in for the clean one, with others to follow: what holds for that holds for it."""
        before = self.memory.begin(self.model, self.layout, self.inputs)
        self.held = before if isinstance(before, Held) else None
        outputs: Tensor = self.run(placements, noise=noise, moves_statistics=True)
        if isinstance(before, Look):
            assert self.last is not None
            self.held = self.last.held = before.held()
            placed = {site: {slot.name: slot.placed for slot in slots} for site, slots in self.last.slots.items()}
            self._run_again(before, outputs, placed, noise)  # type: ignore[arg-type]
        self.left = self.memory.left()
        return outputs

    def put_back(self) -> None:
        """Let the model's attributes say again what the first pass wrote there."""
        if self.left is not None:
            self.left()

    def loss(self, outputs: Tensor) -> Tensor:
        """Supervised loss of each labelled example."""
        if self.labelled is not None:
            outputs = outputs[: self.labelled]
        return self.charged(self.supervised, outputs, self.targets, outputs)

    def penalty(self, penalty: Callable[..., Tensor], clean: Tensor, perturbed: Tensor) -> Tensor:
        """A penalty per example (B,)."""
        return self.charged(penalty, clean, perturbed, perturbed)

    def charged(self, function: Callable[..., Tensor], first: Any, second: Any, outputs: Tensor) -> Tensor:
        """What a loss or penalty gives per example, over the positions that count."""
        mask = None if self.masks.all_count else self.masks.at_outputs(outputs)
        return charge(function, first, second, outputs.shape[0], mask, self.targets)

    def average(self, values: Tensor, outputs: Tensor | None = None) -> Tensor:
        """The mean of a per-example charge: over examples with anything to count, or over their tokens."""
        return self.means.of(values, self._said if outputs is None else outputs)

    @property
    def share(self) -> Tensor | int:
        """How many examples, or tokens, the step's loss stands for; where nothing was averaged, all of its examples."""
        if self.means.counted is not None:
            return self.means.counted
        return 1 if self._said is None else len(self._said)

    @property
    def _said(self) -> Tensor | None:
        """The clean outputs, or where nobody asked for them those of the last pass."""
        return self._latest if self._outputs is None else self._outputs

    def note(self, **values: Any) -> None:
        """Keep diagnostics of the term that plays; tensors become floats, and functions are asked, when they are read."""
        for key, value in values.items():
            self.notes[f"{self.speaker}/{key}"] = value

    # -- inside -----------------------------------------------------------------------------------------------

    def _pass(self, placements: Mapping[Site, Placement], tapes: tuple[Tape, ...]) -> Pass:
        return Pass(
            self.model,
            self.sites,
            placements,
            tapes,
            self.masks.at_slot if self.masks.given is not None or self.masks.found else None,
            self.devices,
            self.layout,
            self.sides,
            held=self.held,
        )

    def _run(self, one: Pass, **options: Any) -> Any:
        self.forward_passes += 1
        if not self._sharing:
            return one.run(self.inputs, **options)
        with ExitStack() as stack:
            for site in self._sharing:
                stack.enter_context(site.sharing(self.cache))
            return one.run(self.inputs, **options)

    def _run_again(
        self, look: Look, first: Tensor, placements: Mapping[Site, Placement], noise: RandomState | None
    ) -> None:
        """The first pass once more where it changed something: all passes rest on a model that is a function of its inputs."""
        names = look.changed()
        if not names:
            self.memory.looked.add(self.model.training)
            return
        for tape in self.tapes.values():
            tape.forbid()
        self.tapes.clear()
        back, passes = look.keep(), self.forward_passes
        try:
            with nullcontext() if any(map(is_compiled, self.model.modules())) else torch.no_grad():
                again = self.extract(self._run(self._pass(placements, ()), noise=noise))
        finally:
            back()
            self.forward_passes = passes
        look.compare(names, first, again)
        self.memory.looked.add(self.model.training)

    def _extracted(self, outputs: Any) -> Tensor:
        tensor = self.extract(outputs)
        if tensor.dim() == 0:
            raise ValueError("the model returns a single number; an objective needs outputs with one row per example")
        if tensor.shape[0] == 0:
            raise ValueError("the batch is empty: an objective needs at least one example")
        self._latest = tensor
        return tensor
