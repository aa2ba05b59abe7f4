"""How `Scores` reaches into Hugging Face models: through transformers' own attention and mask interfaces.

While a layer is watched its private view of the config names an attention implementation registered here; the model's
config, weights and code are not touched, and the mask is built for the implementation that the model was loaded with. The
same names are registered as mask implementations too: an attention function without its mask function gets no padding.
"""

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..site import Undo
from .multihead import ScoreVisit

try:
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
except ImportError as error:
    raise ImportError("Scores on Hugging Face models needs transformers>=4.56: pip install 'sparring[hf]'") from error

KERNELS = ("eager", "sdpa")
_PREFIX = "sparring_"
_CROSS = ("encoder_hidden_states", "key_value_states")
# Arguments by which some families change the scores in a way of their own.
_FOREIGN = ("softcap", "s_aux", "head_mask")


@dataclass
class _Watch:
    """One watched layer: who looks, and whether its present call attends to another sequence."""

    visits: list[ScoreVisit]
    kernel: str
    cross: bool = False


_WATCHED: "WeakKeyDictionary[nn.Module, _Watch]" = WeakKeyDictionary()


def attends_by_interface(module: nn.Module) -> bool:
    """Whether this very module (not its children) asks the attention interface for its kernel."""
    return _kind_attends(type(module))  # type: ignore[arg-type]  # classes are hashable


@cache
def _kind_attends(kind: type[nn.Module]) -> bool:
    forward = inspect.unwrap(kind.forward)
    return "ALL_ATTENTION_FUNCTIONS" in getattr(getattr(forward, "__code__", None), "co_names", ())


def install_attention(module: nn.Module, visit: ScoreVisit) -> Undo:
    """Make a Hugging Face attention layer show its scores (B, heads, queries, keys) to `visit`; returns the way back."""
    config: Any = module.config
    kernel = (config._attn_implementation or "eager").removeprefix(_PREFIX)
    if kernel not in KERNELS:
        raise ValueError(
            f"Scores: {type(module).__name__} runs the {kernel!r} kernel, which never holds the scores; "
            'load the model with attn_implementation="eager" or "sdpa"'
        )
    watch = _WATCHED.get(module) or _Watch([], kernel)
    _WATCHED[module] = watch
    watch.visits.append(visit)
    private = copy.copy(config)
    # Past the public setter, which would write to sub-configs that the model shares.
    private.__dict__["_attn_implementation_internal"] = _PREFIX + kernel
    module.config = private

    def note_cross(_: nn.Module, args: object, kwargs: dict[str, object]) -> None:
        watch.cross = any(kwargs.get(name) is not None for name in _CROSS)

    handle = module.register_forward_pre_hook(note_cross, with_kwargs=True)

    def undo() -> None:
        handle.remove()
        module.config = config
        watch.visits.remove(visit)
        if not watch.visits:
            _WATCHED.pop(module, None)

    return undo


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    **kwargs: object,
) -> tuple[Tensor, Tensor | None]:
    """Attention written out: scores (shown to whoever watches), mask, softmax, dropout, sum; the steps of the eager kernel."""
    watch = _WATCHED.get(module)
    if watch is None:
        raise RuntimeError(f"{type(module).__name__} kept a config of sparring after its perturbed pass ended")
    if foreign := [name for name in _FOREIGN if kwargs.get(name) is not None]:
        raise ValueError(
            f"Scores: {type(module).__name__} changes its scores by {foreign[0]}, which this adapter does not know"
        )
    groups = getattr(module, "num_key_value_groups", 1)
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = torch.matmul(query, key.transpose(2, 3)) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if position_bias is not None:
        scores = scores + position_bias
    if watch.kernel == "sdpa" and attention_mask is None and scores.shape[2] > 1:
        causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
        attention_mask = torch.ones(scores.shape[2:], dtype=torch.bool, device=scores.device).tril() if causal else None
    valid = _valid(scores, attention_mask, watch.cross)
    for visit in watch.visits:
        scores = visit(scores, valid)
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
    elif attention_mask is not None:
        scores = scores + attention_mask
    weights = F.dropout(scores.softmax(-1), p=dropout, training=module.training)
    output = torch.matmul(weights, value).transpose(1, 2).contiguous()
    return output, weights if watch.kernel == "eager" else None


def _valid(scores: Tensor, mask: Tensor | None, cross: bool) -> Tensor:
    """(B, 1 or heads, queries, keys): True where a query may look; padded words of a self-attention ask nothing either."""
    if mask is None:
        mask = torch.ones((1, 1), dtype=torch.bool, device=scores.device)
    seen = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    while seen.dim() < 4:
        seen = seen.unsqueeze(0)
    seen = seen.expand(scores.shape[0], seen.shape[1], scores.shape[2], scores.shape[3])
    if cross or scores.shape[2] != scores.shape[3]:
        return seen
    return seen & seen.any(-2).unsqueeze(-1)


def _register() -> None:
    for kernel in KERNELS:
        AttentionInterface.register(_PREFIX + kernel, _attend)
        mask: Callable[..., Any] = ALL_MASK_ATTENTION_FUNCTIONS[kernel]
        AttentionMaskInterface.register(_PREFIX + kernel, mask)


_register()
