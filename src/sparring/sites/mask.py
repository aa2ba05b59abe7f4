"""The mask of a dropout layer."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..nn.matching import match
from .functional import drops_by_function, install_drop
from .site import EVERYWHERE, Kind, Site, Undo, Visit, patch_forward
from .time_major import batch_dim_of, note_time_major

_OWN: dict[type[nn.Module], Any] = {
    nn.Dropout: F.dropout,
    nn.Dropout1d: F.dropout1d,
    nn.Dropout2d: F.dropout2d,
    nn.Dropout3d: F.dropout3d,
}


@dataclass(frozen=True)
class Mask(Site):
    """The multiplier that a dropout layer applies, scale included.

    Any `nn.Dropout`, `nn.Dropout1d/2d/3d`, and any dropout layer that has a method `draw(input) -> multiplier` (ours do). A module
    that calls `torch.nn.functional.dropout` in its own code counts as a layer, each call a slot: BART's and Whisper's layers, and
    Hugging Face's attention weights under `attn_implementation="eager"` (a fused kernel never shows its mask).
    Feature dropout keeps its shape: one number per channel. Padding is known in (B, T, H) alone: entries elsewhere are units.

    >>> import sparring as sp
    >>> model = nn.Sequential(nn.Dropout(0.5))
    >>> sp.perturbed_call(model, {sp.Mask("0"): torch.tensor([[0.0, 2.0]])}, torch.ones(1, 2))
    tensor([[0., 2.]])

    Args:
        glob: which layers; all of them by default.
        keep: keep rate of the mask that stands in the clean pass: None lets the layer draw as it always does,
            1.0 keeps everything (the expectation of the mask).
        share: dimensions along which one mask is used, e.g. (1,) for the same mask at every step of (B, T, H).
    """

    glob: str = "**"
    keep: float | None = None
    share: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.keep is not None and not 0 < self.keep <= 1:
            raise ValueError(f"Mask(keep={self.keep}): a keep rate lies in (0, 1]")
        if 0 in self.share:
            raise ValueError("Mask(share=...): dimension 0 counts the examples; share later ones")

    @property
    def kind(self) -> Kind:
        return "mask"

    def modules(self, model: nn.Module) -> dict[str, nn.Module]:
        note_time_major(model)
        return match(
            model, self.glob, lambda m: type(m) in _OWN or hasattr(m, "draw") or drops_by_function(m), "dropout layer"
        )

    def install(self, name: str, module: nn.Module, visit: Visit) -> Undo:
        time_major = batch_dim_of(module)

        def drop(input: Tensor, p: float, training: bool) -> Tensor:
            # Attention weights (B, heads, queries, keys) are batch first everywhere, and their heads are no words.
            dim = time_major if input.dim() == 3 else 0
            first = input.movedim(dim, 0)
            # What is shared is counted examples first; else the layer draws in its own order, as it always does.
            draw = first if self.share else input
            clean = self._clean(module, draw, p, training)
            clean = clean if self.share else clean.movedim(dim, 0)
            units = clean.dim() != 3 or isinstance(module, nn.Dropout1d | nn.Dropout2d | nn.Dropout3d)
            valid = EVERYWHERE if units else None
            return input * visit(name or "mask", clean, valid).movedim(0, dim).to(input.dtype)

        if type(module) in _OWN or hasattr(module, "draw"):
            return patch_forward(module, lambda input: drop(input, getattr(module, "p", 0.0), module.training))
        return install_drop(module, drop)

    def _clean(self, module: nn.Module, input: Tensor, p: float, training: bool) -> Tensor:
        if self.keep is None and hasattr(module, "draw"):
            return module.draw(input).contiguous()  # type: ignore[operator]  # expanded, it would be one mask for the batch
        shape = list(input.shape)
        if isinstance(module, nn.Dropout1d | nn.Dropout2d | nn.Dropout3d):
            shape[2:] = [1] * (input.dim() - 2)
        for dim in self.share:
            shape[dim] = 1
        ones = torch.ones(shape, dtype=input.dtype, device=input.device)
        if self.keep is not None:
            return ones if self.keep == 1 else torch.bernoulli(ones * self.keep) / self.keep
        return _OWN.get(type(module), F.dropout)(ones, p, training)
