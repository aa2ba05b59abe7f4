"""What a module hands on: embeddings, hidden layers, pooled features."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ..nn.matching import match
from .site import Kind, Site, Undo, Visit
from .time_major import batch_dim_of, note_time_major


@dataclass(frozen=True)
class Output(Site):
    """The output of every module that the glob names, each call with a perturbation of its own.

    >>> import torch, sparring as sp
    >>> model = nn.Sequential(nn.Identity(), nn.Flatten())
    >>> sp.perturbed_call(model, {sp.Output("0"): torch.ones(1, 2)}, torch.zeros(1, 2))
    tensor([[1., 1.]])

    Args:
        glob: module name or pattern (`*` within one dotted part, `**` across dots).
        index: which entry to perturb when the module returns a tuple, list or mapping; the first by default.
        batch_dim: which dimension counts the examples. None: 1 for the time-major layers that are known (recurrent, attention and
            transformer layers of torch without `batch_first`, what lies inside them, the inside of XLNet), else 0.
    """

    glob: str
    index: int | str = 0
    batch_dim: int | None = None

    outside = True

    @property
    def kind(self) -> Kind:
        return "additive"

    def modules(self, model: nn.Module) -> dict[str, nn.Module]:
        note_time_major(model)
        return match(model, self.glob)

    def install(self, name: str, module: nn.Module, visit: Visit) -> Undo:
        dim = batch_dim_of(module, self.index) if self.batch_dim is None else self.batch_dim

        def place(tensor: object) -> Tensor:
            if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
                raise ValueError(
                    f"Output({self.glob!r}): {name or 'the model'} hands on {type(tensor).__name__}, not a real tensor"
                )
            if dim == 0:
                return visit(name or "output", tensor)
            return visit(name or "output", tensor.movedim(dim, 0)).movedim(0, dim)

        def after(_: nn.Module, args: object, output: object) -> object:
            if isinstance(output, Tensor):
                return place(output)
            if isinstance(output, dict) and (self.index in output or self.index == 0):
                key = self.index if self.index in output else next(iter(output))
                changed: Any = type(output)(**output) if type(output) is not dict else dict(output)
                changed[key] = place(output[key])
                return changed
            if isinstance(output, list | tuple) and isinstance(self.index, int) and self.index < len(output):
                items = list(output)
                items[self.index] = place(items[self.index])
                return type(output)(*items) if hasattr(output, "_fields") else type(output)(items)
            raise ValueError(
                f"Output({self.glob!r}, index={self.index!r}) does not fit what {name} returns: {type(output).__name__}"
            )

        return module.register_forward_hook(after).remove
