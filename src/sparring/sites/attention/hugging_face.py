"""How `Scores` reaches into Hugging Face models: through transformers' own attention and mask interfaces.

While a layer is watched its private view of the config names an attention implementation registered here; the model's
config, weights and code are not touched, and the mask is built for the implementation that the model was loaded with. The
same names are registered as mask implementations too: an attention function without its mask function gets no padding.

What the visit adds goes into the additive mask of the layer's own kernel, so that caps, sinks, position biases and whatever else a
family does to its scores stay as they are. Imported when a Hugging Face layer is met.
"""

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ...penalties import full_precision
from ..site import Undo
from .registry import ScoreVisit
from .shift import shift_of

try:
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
except ImportError as error:
    raise ImportError("Scores on Hugging Face models needs transformers>=4.56: pip install 'sparring[hf]'") from error

KERNELS = ("eager", "sdpa")
_PREFIX = "sparring_"
_CROSS = ("encoder_hidden_states", "key_value_states")


@dataclass
class _Watch:
    """One watched layer: who looks, and whether its present call attends to another sequence."""

    visits: list[ScoreVisit]
    kernel: Callable[..., tuple[Tensor, Tensor | None]]
    fused: bool
    cross: bool = False


_WATCHED: "WeakKeyDictionary[nn.Module, _Watch]" = WeakKeyDictionary()


def install_attention(module: nn.Module, visit: ScoreVisit) -> Undo:
    """Make a Hugging Face attention layer show its scores (B, heads, queries, keys) to `visit`; returns the way back."""
    config: Any = module.config
    kernel = (config._attn_implementation or "eager").removeprefix(_PREFIX)
    if kernel not in KERNELS:
        raise ValueError(
            f"Scores: {type(module).__name__} runs the {kernel!r} kernel, which never holds the scores; "
            'load the model with attn_implementation="eager" or "sdpa"'
        )
    watch = _WATCHED.get(module) or _Watch([], _own_kernel(module, kernel), fused=kernel == "sdpa")
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


def _own_kernel(module: nn.Module, kernel: str) -> Callable[..., Any]:
    """The function that the layer would have called."""
    if kernel != "eager":
        return ALL_ATTENTION_FUNCTIONS[kernel]
    forward = inspect.unwrap(type(module).forward)
    for name in forward.__code__.co_names:
        if name.endswith("eager_attention_forward") and name in forward.__globals__:
            return forward.__globals__[name]
    raise ValueError(
        f'Scores: the eager kernel of {type(module).__name__} cannot be found; load the model with attn_implementation="sdpa", '
        "or register_attention a function for this layer"
    )


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """The layer's own kernel, with what the visits add to the scores added to its mask."""
    watch = _WATCHED.get(module)
    if watch is None:
        raise RuntimeError(f"{type(module).__name__} kept a config of sparring after its perturbed pass ended")
    if is_causal is not None:
        kwargs["is_causal"] = is_causal
    scores = shown_scores(module, query, key, kwargs)
    mask = None if attention_mask is None else attention_mask[..., : scores.shape[-1]]
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    if watch.fused and causal and mask is None and scores.shape[2] > 1:
        mask = torch.ones(scores.shape[2:], dtype=torch.bool, device=scores.device).tril()
    valid = _valid(scores, mask, watch.cross)
    placed = scores
    for visit in watch.visits:
        placed = visit(placed, valid)
    if placed is scores:
        return watch.kernel(module, query, key, value, attention_mask, **kwargs)
    shift = shift_of(placed, scores).to(query.dtype)
    return watch.kernel(module, query, key, value, _added(mask, shift), **kwargs)


def shown_scores(module: nn.Module, query: Tensor, key: Tensor, options: dict[str, Any]) -> Tensor:
    """The scores before any mask (B, heads, queries, keys), in float32 at least: a shift in half precision would be rounded away."""
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key = key.repeat_interleave(groups, 1)
    scaling = options.get("scaling")
    scores = full_precision(
        torch.matmul(query, key.transpose(2, 3)) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    )
    if (cap := options.get("softcap")) is not None:
        scores = cap * torch.tanh(scores / cap)
    bias = options.get("position_bias")
    return scores if bias is None else scores + bias


def _added(mask: Tensor | None, shift: Tensor) -> Tensor:
    if mask is None:
        return shift
    if mask.dtype == torch.bool:
        mask = torch.zeros((), dtype=shift.dtype, device=shift.device).masked_fill(~mask, torch.finfo(shift.dtype).min)
    return mask + shift


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
