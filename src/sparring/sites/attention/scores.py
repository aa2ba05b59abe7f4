"""Attention scores before their softmax."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...nn.matching import match, pattern
from ..site import Kind, Site, Undo, Visit
from .registry import adapter_of, reachable
from .shift import shifted


@dataclass(frozen=True)
class Scores(Site):
    """The pre-softmax scores of attention layers, one row per query.

    Reaches `sparring.nn.AdditiveAttention` and `ScaledDotAttention` (and any layer of yours that sends its scores through
    a submodule `scores = ScorePoint()`), `nn.MultiheadAttention`, the transformer layers of torch, Hugging Face models
    that attend through the attention interface (`eager` or `sdpa`), DeBERTa, XLNet and Swin's windows; `register_attention` adds
    other layers. The layers are left as they are; padding is found in the masks they get, and is never perturbed. Scores have shape
    (B, T), or (B, heads, queries, keys).

    >>> import sparring as sp
    >>> layer = sp.nn.AdditiveAttention(4)
    >>> push = torch.tensor([[0.0, 50.0, 0.0]])
    >>> pooled, weights = sp.perturbed_call(layer, {sp.Scores("**"): push}, torch.randn(1, 3, 4))
    >>> weights.detach().round(decimals=4)
    tensor([[0., 1., 0.]])

    Args:
        glob: names of attention layers, or of modules that contain some (`"encoder.layers.0"`); all by default.
        layers: which of the layers found, counted from 0 in the model's order (negative from the end); all by default.
        heads: which heads of a multi-head layer, negative from the end; all by default.
    """

    glob: str = "**"
    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None

    @property
    def kind(self) -> Kind:
        return "additive"

    def modules(self, model: nn.Module) -> dict[str, nn.Module]:
        fits = pattern(self.glob)
        found = {name: layer for name, layer in reachable(model) if any(map(fits.fullmatch, _lineage(name)))}
        if not found:  # raises, with near names
            match(
                model,
                self.glob,
                lambda m: any(True for _ in reachable(m)),
                "attention layer whose scores can be reached",
            )
        if self.layers is None:
            return found
        names = list(found)
        if bad := [k for k in self.layers if not -len(names) <= k < len(names)]:
            raise ValueError(
                f"Scores(layers={self.layers}): {self.glob!r} finds {len(names)} attention layers, so there is no {bad[0]}"
            )
        return {names[k]: found[names[k]] for k in self.layers}

    def install(self, name: str, module: nn.Module, visit: Visit) -> Undo:
        def visit_heads(scores: Tensor, valid: Tensor | None) -> Tensor:
            return self._visit(name or "scores", scores, valid, visit)

        adapter = adapter_of(module)
        assert adapter is not None, "modules() finds layers with an adapter only"
        return adapter(module, visit_heads)

    def added(self, value: Tensor, perturbation: Tensor) -> Tensor:
        return shifted(value, perturbation)

    def _visit(self, name: str, scores: Tensor, valid: Tensor | None, visit: Visit) -> Tensor:
        if self.heads is None:
            return visit(name, scores, valid)
        if scores.dim() != 4:
            raise ValueError(
                f"Scores(heads={self.heads}): {name} has one head, with scores of shape {tuple(scores.shape)}; leave heads out"
            )
        count = scores.shape[1]
        if bad := [h for h in self.heads if not -count <= h < count]:
            raise ValueError(f"Scores(heads={self.heads}): {name} has {count} heads, so there is no {bad[0]}")
        index = torch.tensor([h % count for h in self.heads], device=scores.device)
        if valid is not None and valid.shape[1] > 1:
            valid = valid[:, index]
        chosen = scores[:, index]
        placed = visit(name, chosen, valid)
        return scores if placed is chosen else scores.index_copy(1, index, placed)


def _lineage(name: str) -> list[str]:
    """A module's name and those of all that contain it: "a.b" -> "", "a", "a.b"."""
    parts = name.split(".")
    return ["", *(".".join(parts[: k + 1]) for k in range(len(parts)))]
