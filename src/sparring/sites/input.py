"""The model's own input."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _global_forward_pre_hooks

from .site import Kind, Site, Undo, Visit, patch_forward


@dataclass(frozen=True)
class Input(Site):
    """What the model is called with: pixels, features, any floating-point argument.

    >>> import sparring as sp
    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.ones_(model.weight)
    >>> sp.perturbed_call(model, {sp.Input(): torch.tensor([[0.5, 0.5]])}, torch.zeros(1, 2)).item()
    1.0

    Args:
        key: position or keyword of the argument; None takes the first floating-point tensor.
    """

    key: int | str | None = None

    outside = True

    @property
    def kind(self) -> Kind:
        return "additive"

    def modules(self, model: nn.Module) -> dict[str, nn.Module]:
        return {"": model}

    def meet(self, model: nn.Module, inputs: object, visit: Visit) -> object:
        """One tensor and nothing in front of the model: no hook and no patch is needed."""
        if (
            type(self) is Input  # another kind of input says in `install` what it does to the value
            and self.key is None
            and isinstance(inputs, Tensor)
            and inputs.is_floating_point()
            and not (model._forward_pre_hooks or _global_forward_pre_hooks)
            and type(model).__call__ is nn.Module.__call__  # one of its own may work on the inputs, as hooks may
        ):
            return visit("input", inputs)
        return None

    def install(self, name: str, module: nn.Module, visit: Visit) -> Undo:
        def moved(args: tuple[object, ...], kwargs: dict[str, object]) -> tuple[tuple[object, ...], dict[str, object]]:
            key = self._key(args, kwargs)
            value = kwargs[key] if isinstance(key, str) else args[key]
            assert isinstance(value, Tensor)
            placed = visit(name or "input", value)
            if isinstance(key, str):
                return args, {**kwargs, key: placed}
            return (*args[:key], placed, *args[key + 1 :]), kwargs

        if (
            module._forward_pre_hooks
            or module._compiled_call_impl is not None
            or type(module).__name__ == "OptimizedModule"
        ):
            before = lambda _, args, kwargs: moved(args, kwargs)  # noqa: E731
            return module.register_forward_pre_hook(before, with_kwargs=True).remove
        inner = module.forward  # a patch costs a third of a hook

        def forward(*args: object, **kwargs: object) -> object:
            args, kwargs = moved(args, kwargs)
            return inner(*args, **kwargs)

        return patch_forward(module, forward)

    def _key(self, args: tuple[object, ...], kwargs: dict[str, object]) -> int | str:
        candidates: dict[int | str, object] = dict(enumerate(args))
        candidates.update(kwargs)
        floating = [k for k, v in candidates.items() if isinstance(v, Tensor) and v.is_floating_point()]
        if self.key is None and floating:
            return floating[0]
        if self.key in floating:
            return self.key
        seen = ", ".join(
            f"{k}: {v.dtype if isinstance(v, Tensor) else type(v).__name__}" for k, v in candidates.items()
        )
        raise ValueError(
            f"Input({self.key!r}) finds no floating-point tensor to perturb among the inputs ({seen}); "
            'token ids cannot be perturbed: use Output("name of the embedding")'
        )


def holds_nan(inputs: object) -> bool:
    """Whether any floating-point tensor among the inputs has a NaN."""
    leaves = torch.utils._pytree.tree_leaves(inputs)
    return any(isinstance(x, Tensor) and x.is_floating_point() and bool(torch.isnan(x).any()) for x in leaves)
