"""A small transformer for sentences and sentence pairs, called as Hugging Face's are.

>>> import torch
>>> model = SentenceEncoder(vocabulary=50, outputs=2, width=16, heads=2, layers=1)
>>> ids = torch.tensor([[3, 4, 5, 0]])
>>> model(input_ids=ids, attention_mask=(ids > 0).long()).shape
torch.Size([1, 2])
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .transformer.layers import check_heads


class Embeddings(nn.Module):
    """Words, positions and which sentence, summed and normalised."""

    def __init__(self, vocabulary: int, width: int, length: int, dropout: float) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(vocabulary, width, padding_idx=0)
        self.position_embeddings = nn.Embedding(length, width)
        self.token_type_embeddings = nn.Embedding(2, width)
        self.norm, self.dropout = nn.LayerNorm(width), nn.Dropout(dropout)
        for table in (self.word_embeddings, self.position_embeddings, self.token_type_embeddings):
            nn.init.normal_(table.weight, std=0.5 / math.sqrt(width))

    def forward(self, ids: Tensor, types: Tensor | None) -> Tensor:  # (B, T) -> (B, T, width)
        places = torch.arange(ids.shape[1], device=ids.device)
        total = self.word_embeddings(ids) + self.position_embeddings(places)
        return self.dropout(self.norm(total if types is None else total + self.token_type_embeddings(types)))


class Layer(nn.Module):
    """Self-attention and a feed-forward network, normalised first."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.inner = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:  # (B, T, width), (B, 1, 1, T)
        parts = self.project(self.norm(x)).unflatten(-1, (3, self.heads, -1))  # (B, T, 3, heads, width / heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(1, 2).flatten(2)
        x = x + self.dropout(self.out(mixed))
        return x + self.dropout(self.feed(self.inner(x)))


class SentenceEncoder(nn.Module):
    """Embeddings, layers, the mean over valid positions, a linear head; logits (B, outputs).

    Args:
        vocabulary: number of words, 0 is padding.
        outputs: classes, or 1 for a score.
        width: of the hidden states.
        heads: of the attention.
        layers: how many.
        length: longest sequence.
        dropout: rate.
    """

    def __init__(
        self,
        vocabulary: int,
        outputs: int,
        width: int = 64,
        heads: int = 4,
        layers: int = 2,
        length: int = 256,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        check_heads(width, heads)
        self.embeddings = Embeddings(vocabulary, width, length, dropout)
        self.layers = nn.ModuleList(Layer(width, heads, dropout) for _ in range(layers))
        self.norm, self.classifier = nn.LayerNorm(width), nn.Linear(width, outputs)

    def get_input_embeddings(self) -> nn.Module:
        """The table of words, under the name that Hugging Face's models give it."""
        return self.embeddings.word_embeddings

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        valid = attention_mask.bool()
        x = self.embeddings(input_ids, token_type_ids)
        for layer in self.layers:
            x = layer(x, valid[:, None, None])
        weight = valid[..., None].to(x.dtype)
        return self.classifier((self.norm(x) * weight).sum(1) / weight.sum(1).clamp(min=1))
