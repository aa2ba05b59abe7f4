"""What every site has in common."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

Undo = Callable[[], None]


class Visit(Protocol):
    """Called by an installed site each time it fires; returns what shall stand there instead of `value`."""

    def __call__(self, name: str, value: Tensor, valid: Tensor | None = None) -> Tensor: ...


@runtime_checkable
class Site(Protocol):
    """A place where a network can be perturbed.

    `kind` is "additive" (the perturbation is added to what stands there) or "mask" (it replaces a multiplier).
    `install` makes a module call `visit` with the batch-first value that stands at the site whenever it runs, and returns
    a function that takes everything off again.
    """

    @property
    def kind(self) -> str: ...
    def modules(self, model: nn.Module) -> dict[str, nn.Module]: ...
    def install(self, name: str, module: nn.Module, visit: Visit) -> Undo: ...


@dataclass
class Slot:
    """One firing of a site in a pass: the module's name (`name#1` for its second call) and what stood there.

    Attributes:
        name: where.
        value: the clean value (additive sites) or the clean multiplier (mask sites), batch first.
        valid: False on padding, broadcastable to `value`; None if everything counts.
        placed: what the pass put there: the perturbation (additive) or the multiplier (mask); None in a clean pass.
    """

    name: str
    value: Tensor
    valid: Tensor | None = None
    placed: Tensor | None = None


EVERYWHERE = torch.ones((), dtype=torch.bool)
"""What a site visits with to say that none of its units is padding: a mask of (B, T) words must not be taken for one of (B, H)
units where T = H. Slots do not carry it."""


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
