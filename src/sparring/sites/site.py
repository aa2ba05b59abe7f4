"""What every site has in common."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

Undo = Callable[[], object]
Kind = Literal["additive", "mask"]


class Visit(Protocol):
    """Called by an installed site each time it fires; returns what shall stand there instead of `value`."""

    def __call__(
        self, name: str, value: Tensor, valid: Tensor | None = None, words: Tensor | None = None
    ) -> Tensor: ...


class Site(ABC):
    """A place where a network can be perturbed. A site of your own writes `kind`, `modules` and `install`.

    Sites are compared and hashed: make them frozen dataclasses, and keep nothing of a batch on them (that goes to the `Slot`).

    Attributes:
        shared: what stands here has no examples in dimension 0, but one entry for all of them (weights).
        outside: acts on what goes in or comes out of a module by hooks, so that the module itself may be compiled.
    """

    shared: bool = False
    outside: bool = False

    @property
    @abstractmethod
    def kind(self) -> Kind:
        """ "additive" (the perturbation is added to what stands there) or "mask" (it replaces a multiplier)."""

    @abstractmethod
    def modules(self, model: nn.Module) -> dict[str, nn.Module]:
        """The modules to install on, by name; raises, listing near names, where there is none."""

    @abstractmethod
    def install(self, name: str, module: nn.Module, visit: Visit) -> Undo:
        """Make the module call `visit` with the batch-first value that stands here whenever it runs; returns the way back."""

    def meet(self, model: nn.Module, inputs: Any, visit: Visit) -> Any:
        """What to call the model with instead of `inputs`, where the site stands at its door; None: `install` finds it inside."""
        return None

    def added(self, value: Tensor, perturbation: Tensor) -> Tensor:
        """What stands at an additive site in a perturbed pass."""
        return value + perturbation

    def sharing(self, store: dict[Any, Any]) -> AbstractContextManager[None]:
        """Held open during every pass of a step: a chance to share work between passes through `store`."""
        return nullcontext()


@dataclass
class Slot:
    """One firing of a site in a pass: the module's name (`name#1` for its second call) and what stood there.

    Attributes:
        name: where.
        value: the clean value (additive sites) or the clean multiplier (mask sites), batch first.
        valid: False on padding, broadcastable to `value`; None if everything counts.
        placed: what the pass put there: the perturbation (additive) or the multiplier (mask); None in a clean pass.
        words: ids of the words that stand here, where the site knows them.
    """

    name: str
    value: Tensor
    valid: Tensor | None = None
    placed: Tensor | None = None
    words: Tensor | None = None

    @property
    def module(self) -> str:
        """The name without the number of the call."""
        return self.name.partition("#")[0]

    def bare(self) -> "Slot":
        """The same without its graph and without what was placed: what a player is shown."""
        return Slot(self.name, self.value.detach(), self.valid, words=self.words)


EVERYWHERE = torch.ones((), dtype=torch.bool)
"""What a site visits with to say that none of its units is padding: a mask of (B, T) words must not be taken for one of (B, H)
units where T = H. Slots do not carry it."""


def undo_all(undo: list[Undo]) -> None:
    """Go all ways back, the last first; one that raises does not keep the others from being gone."""
    try:
        while undo:
            undo.pop()()
    finally:
        if undo:
            undo_all(undo)


def patch_forward(module: nn.Module, forward: Callable[..., object]) -> Undo:
    """Replace one module's `forward` until the returned function is called; a patch that was there before comes back."""
    attributes = module.__dict__  # past nn.Module.__setattr__, which would look for parameters and modules first
    before = attributes.get("forward")
    attributes["forward"] = forward

    def undo() -> None:
        if before is None:
            del attributes["forward"]
        else:
            attributes["forward"] = before

    return undo
