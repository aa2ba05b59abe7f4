"""How `Scores` reaches into `nn.MultiheadAttention`: through the additive mask, so that every option of the layer holds."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...penalties import full_precision
from ..site import Undo, patch_forward
from .registry import ScoreVisit, register_attention
from .shift import shift_of
from .softmax import HIDDEN


@register_attention(nn.MultiheadAttention)
def install_multihead(module: nn.Module, visit: ScoreVisit) -> Undo:
    """Make the layer show its scores (B, heads, queries, keys) to `visit` and attend by what it returns."""
    assert isinstance(module, nn.MultiheadAttention)
    attend = module.forward

    def forward(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        if query.dim() != 3:
            raise ValueError(f"Scores: nn.MultiheadAttention must see a batch (3 dimensions), got {tuple(query.shape)}")
        rest = {"need_weights": need_weights, "average_attn_weights": average_attn_weights}
        scores = full_precision(raw_scores(module, query, key))  # a shift found in half precision would be rounded away
        mask, padding = _additive(attn_mask, query.dtype), _additive(key_padding_mask, query.dtype)
        placed = visit(scores, _valid(scores, mask, padding, _same(query, key)))
        if placed is scores:
            return attend(
                query, key, value, key_padding_mask=key_padding_mask, attn_mask=attn_mask, is_causal=is_causal, **rest
            )
        shift = shift_of(placed, scores).flatten(0, 1).to(query.dtype)  # (B * heads, queries, keys)
        mask = shift if mask is None else shift + mask
        return attend(query, key, value, key_padding_mask=padding, attn_mask=mask, is_causal=False, **rest)

    return patch_forward(module, forward)


def raw_scores(module: nn.MultiheadAttention, query: Tensor, key: Tensor) -> Tensor:
    """The layer's scaled products of queries and keys, before any mask: (B, heads, queries, keys)."""
    if not module.batch_first:
        query, key = query.transpose(0, 1), key.transpose(0, 1)
    if module.in_proj_weight is not None:
        weight_q, weight_k, _ = module.in_proj_weight.chunk(3)
    else:
        weight_q, weight_k = module.q_proj_weight, module.k_proj_weight
    bias_q, bias_k = (None, None) if module.in_proj_bias is None else module.in_proj_bias.chunk(3)[:2]
    q = F.linear(query, weight_q, bias_q).unflatten(-1, (module.num_heads, -1)).transpose(1, 2)
    k = F.linear(key, weight_k, bias_k).unflatten(-1, (module.num_heads, -1)).transpose(1, 2)
    return q @ k.transpose(-2, -1) * module.head_dim**-0.5


def _same(query: Tensor, key: Tensor) -> bool:
    """Whether a layer attends to itself. `fully_shard` hands on an alias of each argument instead of the tensor."""
    if query is key or query.shape != key.shape or query.stride() != key.stride():
        return query is key
    aliases: bool = torch._C._is_alias_of(query, key)  # type: ignore[attr-defined]
    return aliases and query.storage_offset() == key.storage_offset()


def _additive(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """A boolean mask (True = hidden) as numbers to add; mixing both kinds in one call is deprecated in torch."""
    if mask is None or mask.dtype != torch.bool:
        return mask if mask is None else mask.to(dtype)
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(mask, -torch.inf)


def _valid(scores: Tensor, mask: Tensor | None, padding: Tensor | None, to_itself: bool) -> Tensor:
    """Which scores count. Masks of numbers hide by minus infinity, or by -1e9 or the least number there is: padding all the same."""
    batch, heads, queries, keys = scores.shape
    valid = torch.ones((), dtype=torch.bool, device=scores.device).expand(batch, 1, queries, keys)
    if mask is not None:
        seen = mask > HIDDEN
        valid = seen.expand(batch, 1, queries, keys) if seen.dim() == 2 else seen.view(batch, heads, queries, keys)
    if padding is not None:
        words = padding > HIDDEN  # (B, keys)
        seen = words[:, None, None, :].expand(batch, 1, queries, keys)
        if to_itself:  # a padded word asks no question either
            seen = seen & words[:, None, :, None]
        valid = valid & seen
    return valid
