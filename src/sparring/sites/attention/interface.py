"""Hugging Face layers that ask transformers' attention interface for their kernel, and windows of images made of such layers."""

import inspect
import sys
from functools import cache

from torch import Tensor, nn

from ..site import Undo
from .registry import ScoreVisit, register_attention


def is_hugging_face_attention(module: nn.Module) -> bool:
    """Whether this very module (not its children) asks the attention interface of transformers for its kernel."""
    # A Hugging Face module can only be here if its library is imported already: nobody else pays for the import.
    if "transformers" not in sys.modules or not hasattr(getattr(module, "config", None), "_attn_implementation"):
        return False
    return _asks(type(module))  # type: ignore[arg-type]  # classes are hashable


@cache
def _asks(kind: type[nn.Module]) -> bool:
    forward = inspect.unwrap(kind.forward)
    return "ALL_ATTENTION_FUNCTIONS" in getattr(getattr(forward, "__code__", None), "co_names", ())


@register_attention(is_hugging_face_attention)
def through_interface(module: nn.Module, visit: ScoreVisit) -> Undo:
    from .hugging_face import install_attention

    return install_attention(module, visit)


@register_attention("transformers.models.swin.modeling_swin.SwinLayer")
def through_windows(module: nn.Module, visit: ScoreVisit) -> Undo:
    """Swin attends in windows, which stand beside the examples: (B * windows, heads, n, n) are shown as (B, heads, windows * n, n)."""
    batch = 0

    def count(_: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> None:
        nonlocal batch
        batch = len(args[0] if args else kwargs["hidden_states"])

    def per_example(scores: Tensor, valid: Tensor | None) -> Tensor:
        together = _by_example(scores, batch)
        mask = None if valid is None else _by_example(valid.expand_as(scores), batch)
        placed = visit(together, mask)
        if placed is together:
            return scores
        return placed.unflatten(2, (-1, scores.shape[2])).transpose(1, 2).reshape(scores.shape)

    attention = next(child for child in module.modules() if is_hugging_face_attention(child))
    undo, handle = through_interface(attention, per_example), module.register_forward_pre_hook(count, with_kwargs=True)

    def off() -> None:
        handle.remove()
        undo()

    return off


def _by_example(scores: Tensor, batch: int) -> Tensor:
    """(B * windows, heads, n, m) -> (B, heads, windows * n, m): window_partition keeps the windows of an example together."""
    return scores.unflatten(0, (batch, -1)).transpose(1, 2).flatten(2, 3)
