"""The layers of an encoder-decoder transformer (Vaswani et al. 2017), with keys and values that can be kept."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Memory = tuple[Tensor, Tensor]  # keys and values, each (B, heads, T, width / heads)


def check_heads(width: int, heads: int) -> None:
    """Refuse a width that does not divide among the heads, before torch does in words of its own.

    >>> check_heads(30, 4)
    Traceback (most recent call last):
    ...
    ValueError: width=30 does not divide among 4 heads; use a multiple of 4, such as 32
    """
    if heads < 1:
        raise ValueError(f"heads={heads} does not fit width={width}: attention needs at least one head")
    if width < 1 or width % heads:
        near = max(1, -(-width // heads)) * heads
        raise ValueError(
            f"width={width} does not divide among {heads} heads; use a multiple of {heads}, such as {near}"
        )


class Attention(nn.Module):
    """Multi-head attention in two halves: what is attended to can be kept from one call to the next."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (B, heads, T, width / heads)

    def remember(self, x: Tensor) -> Memory:
        """Keys and values of `x` (B, T, width)."""
        return self.split(self.key(x)), self.split(self.value(x))

    def forward(self, x: Tensor, memory: Memory, mask: Tensor | None) -> Tensor:  # mask: True where to look
        mixed = F.scaled_dot_product_attention(self.split(self.query(x)), *memory, attn_mask=mask)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Residual(nn.Module):
    """`x + dropout(change(x))` with its layer norm before (`pre_norm`) or after."""

    def __init__(self, width: int, dropout: float, pre_norm: bool) -> None:
        super().__init__()
        self.norm, self.dropout, self.pre_norm = nn.LayerNorm(width), nn.Dropout(dropout), pre_norm

    def before(self, x: Tensor) -> Tensor:
        return self.norm(x) if self.pre_norm else x

    def after(self, x: Tensor, change: Tensor) -> Tensor:
        x = x + self.dropout(change)
        return x if self.pre_norm else self.norm(x)


class Feed(nn.Sequential):
    """The position-wise network."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__(nn.Linear(width, inner), nn.ReLU(), nn.Linear(inner, width))


class EncoderLayer(nn.Module):
    """Self-attention over the source, then the position-wise network."""

    def __init__(self, width: int, heads: int, inner: int, dropout: float, pre_norm: bool) -> None:
        super().__init__()
        self.attention, self.feed = Attention(width, heads), Feed(width, inner)
        self.first, self.second = (Residual(width, dropout, pre_norm) for _ in range(2))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        seen = self.first.before(x)
        x = self.first.after(x, self.attention(seen, self.attention.remember(seen), mask))
        return self.second.after(x, self.feed(self.second.before(x)))


class DecoderLayer(nn.Module):
    """Self-attention over what is written so far, attention to the source, then the position-wise network."""

    def __init__(self, width: int, heads: int, inner: int, dropout: float, pre_norm: bool) -> None:
        super().__init__()
        self.own, self.source = Attention(width, heads), Attention(width, heads)
        self.feed = Feed(width, inner)
        self.first, self.second, self.third = (Residual(width, dropout, pre_norm) for _ in range(3))

    def forward(
        self, x: Tensor, written: Memory | None, source: Memory, own_mask: Tensor | None, source_mask: Tensor
    ) -> tuple[Tensor, Memory]:
        """New positions `x` (B, T, width) after those `written`; returns their outputs and all that is written now."""
        seen = self.first.before(x)
        keys, values = self.own.remember(seen)
        if written is not None:
            keys, values = torch.cat([written[0], keys], 2), torch.cat([written[1], values], 2)
        x = self.first.after(x, self.own(seen, (keys, values), own_mask))
        x = self.second.after(x, self.source(self.second.before(x), source, source_mask))
        return self.third.after(x, self.feed(self.third.before(x))), (keys, values)
