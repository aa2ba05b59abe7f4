"""An encoder-decoder transformer for translation (Vaswani et al. 2017).

>>> import torch
>>> model = Translator(vocabulary=20, width=16, heads=2, layers=1)
>>> source, target = torch.tensor([[5, 6, 7, 2]]), torch.tensor([[1, 8, 9]])
>>> model(source=source, target=target).shape
torch.Size([1, 3, 20])
"""

import math
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .layers import DecoderLayer, EncoderLayer, Memory, check_heads

PAD, START, END = 0, 1, 2


@dataclass
class Cache:
    """What a decoder keeps of the source and of what it has written: one row for each sentence in the making."""

    written: list[Memory | None]
    source: list[Memory]
    mask: Tensor  # (B, 1, 1, S), True on words
    length: int = 0

    def select(self, rows: Tensor, sources: bool = True) -> None:
        """Go on with these rows, which may repeat; `sources=False` where each row keeps its source sentence."""
        self.written = [m and (m[0][rows], m[1][rows]) for m in self.written]
        if sources:
            self.source = [(keys[rows], values[rows]) for keys, values in self.source]
            self.mask = self.mask[rows]


class Translator(nn.Module):
    """Source and target words to logits of every next target word.

    `source_words` and `target_words` are modules of their own even when they share their weights, so that each side can be
    perturbed: `sp.Output("*_words")` is two places, each with its own ball. The table of the target words is also the
    output layer.

    Args:
        vocabulary: number of pieces; 0 is padding, 1 starts a sentence, 2 ends it.
        width: of the hidden states.
        heads: of the attention.
        layers: of the encoder, and of the decoder.
        inner: width of the position-wise network; None is four times `width`.
        dropout: rate.
        pre_norm: layer norm at the entry of every branch (trains without warm-up) instead of after the sum.
        share: one table of words for both sides.
    """

    def __init__(
        self,
        vocabulary: int,
        width: int = 128,
        heads: int = 4,
        layers: int = 2,
        inner: int | None = None,
        dropout: float = 0.1,
        pre_norm: bool = True,
        share: bool = True,
    ) -> None:
        super().__init__()
        check_heads(width, heads)
        if layers < 1:
            raise ValueError(f"layers={layers} does not fit: a translator has at least one layer")
        self.width = width
        self.source_words = nn.Embedding(vocabulary, width, padding_idx=PAD)
        self.target_words = nn.Embedding(vocabulary, width, padding_idx=PAD)
        for table in (self.source_words, self.target_words):
            nn.init.normal_(table.weight, std=width**-0.5)
            nn.init.zeros_(table.weight[PAD])
        if share:
            self.target_words.weight = self.source_words.weight
        shape = (width, heads, inner or 4 * width, dropout, pre_norm)
        self.encoder = nn.ModuleList(EncoderLayer(*shape) for _ in range(layers))
        self.decoder = nn.ModuleList(DecoderLayer(*shape) for _ in range(layers))
        self.dropout = nn.Dropout(dropout)
        self.source_norm, self.target_norm = (nn.LayerNorm(width) if pre_norm else nn.Identity() for _ in range(2))
        for module in (self.encoder, self.decoder):
            for parameter in module.parameters():
                if parameter.dim() > 1:
                    nn.init.xavier_uniform_(parameter)

    def placed(self, words: Tensor, start: int = 0) -> Tensor:
        """Words (B, T, width) scaled, with the sinusoids of their positions added."""
        places = torch.arange(start, start + words.shape[1], device=words.device)[:, None]
        rates = torch.exp(torch.arange(0, self.width, 2, device=words.device) * (-math.log(10000.0) / self.width))
        waves = torch.stack([torch.sin(places * rates), torch.cos(places * rates)], -1).flatten(1)[:, : self.width]
        return self.dropout(words * math.sqrt(self.width) + waves.to(words.dtype))

    def begin(self, source: Tensor) -> Cache:
        """Read the source sentences (B, S)."""
        mask = (source != PAD)[:, None, None]
        x = self.placed(self.source_words(source))
        for layer in self.encoder:
            x = layer(x, mask)
        x = self.source_norm(x)
        memories = [cast(DecoderLayer, layer).source.remember(x) for layer in self.decoder]
        return Cache([None] * len(memories), memories, mask)

    def write(self, target: Tensor, cache: Cache, own_mask: Tensor | None = None) -> Tensor:
        """Logits (B, T, vocabulary) of the word after each of `target` (B, T), which go on what the cache holds."""
        x = self.placed(self.target_words(target), cache.length)
        for place, layer in enumerate(self.decoder):
            x, cache.written[place] = layer(x, cache.written[place], cache.source[place], own_mask, cache.mask)
        cache.length += target.shape[1]
        return F.linear(self.target_norm(x), self.target_words.weight)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        causal = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool, device=target.device).tril()
        return self.write(target, self.begin(source), causal)
