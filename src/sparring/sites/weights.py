"""The weights themselves."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..nn.matching import match
from .site import EVERYWHERE, Kind, Site, Undo, Visit, patch_forward


@dataclass(frozen=True)
class Weights(Site):
    """Weights of modules: one perturbation for the whole batch, in units of the weight's own norm.

    What stands here is zero: the perturbation of a weight w is `|w| * delta`, so `L2(0.01)` moves every layer by one per cent.

    >>> import sparring as sp
    >>> layer = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.ones_(layer.weight)  # of norm sqrt(2)
    >>> shift = torch.full((1, 1, 2), 0.5)
    >>> round(sp.perturbed_call(layer, {sp.Weights(): shift}, torch.ones(1, 2)).item(), 4)
    3.4142

    Args:
        glob: which modules; every one with weights of at least `dimensions` by default.
        dimensions: parameters with fewer dimensions stay (biases, scales of normalisation layers).

    Paper: Wu, Xia and Wang, Adversarial Weight Perturbation Helps Robust Generalization (2020), eq. 9.
    """

    glob: str = "**"
    dimensions: int = 2

    shared = True

    @property
    def kind(self) -> Kind:
        return "additive"

    def modules(self, model: nn.Module) -> dict[str, nn.Module]:
        found = match(model, self.glob, lambda m: bool(self._own(m)), "module with weights")
        for name, module in found.items():
            if isinstance(module, nn.RNNBase):
                raise ValueError(
                    f"{self}: {name or 'the model'} is an {type(module).__name__}, which keeps its weights in one buffer; "
                    'choose other modules by glob, or mask its weights with RecurrentWeights("...")'
                )
        return found

    def _own(self, module: nn.Module) -> list[str]:
        return [
            k for k, p in module._parameters.items() if p is not None and p.dim() >= self.dimensions and p.requires_grad
        ]

    def install(self, name: str, module: nn.Module, visit: Visit) -> Undo:
        inner, own = module.forward, self._own(module)

        def forward(*args: Any, **kwargs: Any) -> Any:
            moved = {key: self._moved(name, key, module._parameters[key], visit) for key in own}
            return _with_weights(module, moved, lambda: inner(*args, **kwargs))

        return patch_forward(module, forward)

    def _moved(self, name: str, key: str, weight: Tensor | None, visit: Visit) -> Tensor:
        assert weight is not None
        nothing = torch.zeros_like(weight, requires_grad=False).unsqueeze(0)
        delta = visit(f"{name}.{key}" if name else key, nothing, EVERYWHERE)
        return weight if delta is nothing else weight + weight.detach().norm() * delta.squeeze(0)


def _with_weights(module: nn.Module, weights: dict[str, Tensor], run: Callable[[], Any]) -> Any:
    """Run with other tensors in place of parameters; the parameters are back afterwards, whatever happens."""
    held = module._parameters  # past nn.Module.__setattr__, and in place: the order of parameters must not change
    kept = {key: held[key] for key in weights}
    try:
        held.update(weights)  # type: ignore[arg-type]
        return run()
    finally:
        held.update(kept)
