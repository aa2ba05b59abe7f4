"""The vectors that an embedding layer looks up, together with the words they belong to."""

from dataclasses import dataclass

from torch import Tensor, nn

from ..nn.matching import match
from .site import Kind, Site, Undo, Visit


@dataclass(frozen=True)
class Words(Site):
    """What an `nn.Embedding` hands on. Unlike `Output` it finds the padding by itself, and its slots know the words looked up.

    >>> import torch, sparring as sp
    >>> embedding, site = nn.Embedding(9, 4, padding_idx=0), sp.Words("**")
    >>> sp.perturbed_call(embedding, {site: lambda slot: slot.words.unsqueeze(-1) * 0.0}, torch.tensor([[5, 7, 0]])).shape
    torch.Size([1, 3, 4])

    Args:
        glob: names of embedding layers.
        pad: id of the padding word; None takes the layer's own `padding_idx`.
        end: id of a word that is never perturbed either (the end token); None for none.
    """

    glob: str
    pad: int | None = None
    end: int | None = None

    @property
    def kind(self) -> Kind:
        return "additive"

    def modules(self, model: nn.Module) -> dict[str, nn.Module]:
        return match(model, self.glob, lambda m: isinstance(m, nn.Embedding), "embedding layer")

    def install(self, name: str, module: nn.Module, visit: Visit) -> Undo:
        assert isinstance(module, nn.Embedding)
        pad = module.padding_idx if self.pad is None else self.pad

        def after(_: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor], vectors: Tensor) -> Tensor:
            ids = (args[0] if args else kwargs["input"]).detach()
            left_out = [ids != word for word in (pad, self.end) if word is not None]
            valid = None if not left_out else left_out[0] if len(left_out) == 1 else left_out[0] & left_out[1]
            return visit(name or "embedding", vectors, None if valid is None else valid.unsqueeze(-1), ids)

        return module.register_forward_hook(after, with_kwargs=True).remove
