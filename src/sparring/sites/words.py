"""The vectors that an embedding layer looks up, together with the words they belong to."""

from dataclasses import dataclass, field

from torch import Tensor, nn

from ..nn.matching import match
from .site import Slot, Undo, Visit


@dataclass(frozen=True)
class Words:
    """What an `nn.Embedding` hands on. Unlike `Output` it finds the padding by itself and remembers which words were looked up.

    >>> import torch, sparring as sp
    >>> embedding, site = nn.Embedding(9, 4, padding_idx=0), Words("**")
    >>> _ = sp.perturbed_call(embedding, {site: {}}, torch.tensor([[5, 7, 0]]))
    >>> site.ids["embedding"][0].tolist()
    [[5, 7, 0]]

    Args:
        glob: names of embedding layers.
        pad: id of the padding word; None takes the layer's own `padding_idx`.
        ids: the ids of the last pass, by layer, one tensor per call.
    """

    glob: str
    pad: int | None = None
    ids: dict[str, list[Tensor]] = field(default_factory=dict, compare=False, repr=False)

    @property
    def kind(self) -> str:
        return "additive"

    def modules(self, model: nn.Module) -> dict[str, nn.Module]:
        return match(model, self.glob, lambda m: isinstance(m, nn.Embedding), "embedding layer")

    def install(self, name: str, module: nn.Module, visit: Visit) -> Undo:
        assert isinstance(module, nn.Embedding)
        name = name or "embedding"
        pad = module.padding_idx if self.pad is None else self.pad
        self.ids[name] = []

        def after(_: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor], vectors: Tensor) -> Tensor:
            ids = args[0] if args else kwargs["input"]
            self.ids[name].append(ids.detach())
            return visit(name, vectors, None if pad is None else (ids != pad).unsqueeze(-1))

        return module.register_forward_hook(after, with_kwargs=True).remove

    def ids_of(self, slot: Slot) -> Tensor:
        """The word ids that stand at `slot`, shaped like its value without the last dimension."""
        name, _, call = slot.name.partition("#")
        return self.ids[name][int(call or 0)]
