"""The model's input as a variable of the clean pass itself."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .input import Input
from .site import Undo, Visit


@dataclass(frozen=True)
class WatchedInput(Input):
    """The model's input, made a variable that gradients can be asked for: no second pass is needed.

    >>> from sparring import perturbed_call
    >>> _, seen = perturbed_call(nn.Linear(2, 2), {WatchedInput(): {}}, torch.ones(1, 2), record=True)
    >>> seen[WatchedInput()]["input"].requires_grad
    True
    """

    def install(self, name: str, module: nn.Module, visit: Visit) -> Undo:
        def watched(name: str, value: Tensor, valid: Tensor | None = None, words: Tensor | None = None) -> Tensor:
            if torch.is_grad_enabled() and not value.requires_grad:
                value = value.detach().requires_grad_()
            return visit(name, value, valid, words)

        return super().install(name, module, watched)
