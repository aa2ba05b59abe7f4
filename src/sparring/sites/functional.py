"""Dropout that a module calls as a function, without a layer of its own: BART, Whisper, the attention weights of Llama."""

import inspect
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from .attention.interface import is_hugging_face_attention
from .site import Undo, patch_forward

Drop = Callable[[Tensor, float, bool], Tensor]
_DIRECT = frozenset({F.__file__, sys.modules["torch.overrides"].__file__})


def drops_by_function(module: nn.Module) -> bool:
    """Whether this very module (not its children) calls `torch.nn.functional.dropout`, as far as its code tells."""
    if is_hugging_face_attention(module):
        return getattr(module.config, "_attn_implementation", None) in (None, "eager")
    return _calls_dropout(type(module))  # type: ignore[arg-type]  # classes are hashable


@cache
def _calls_dropout(kind: type[nn.Module]) -> bool:
    forward = inspect.unwrap(kind.forward)
    code, names = getattr(forward, "__code__", None), getattr(forward, "__globals__", {})
    if code is None or "dropout" not in code.co_names:
        return False
    return "functional" in code.co_names or any(names.get(name) in (F, F.dropout) for name in code.co_names)


class _AtDropout(TorchFunctionMode):
    """While it is on, dropout that `module` itself calls goes through `drop`; a mode belongs to its thread."""

    def __init__(self, module: nn.Module, drop: Drop) -> None:
        super().__init__()
        self.module, self.drop = module, drop

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not F.dropout or _caller() is not self.module:
            return func(*args, **(kwargs or {}))
        given = inspect.signature(F.dropout).bind(*args, **(kwargs or {}))
        given.apply_defaults()
        return self.drop(*(given.arguments[name] for name in ("input", "p", "training")))


def _caller() -> Any:
    """The module whose code called: `self` of the calling method, or `module` of a kernel that is given one."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename in _DIRECT:
        frame = frame.f_back
    found = frame.f_locals
    return found.get("self", found.get("module"))


def install_drop(module: nn.Module, drop: Drop) -> Undo:
    """Let `drop(input, p, training)` stand in for every dropout that the module calls; returns the way back."""
    run = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        with _AtDropout(module, drop):
            return run(*args, **kwargs)

    return patch_forward(module, forward)
