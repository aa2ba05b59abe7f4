"""Directions from a word to other words of the vocabulary (interpretable adversarial training on embeddings)."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..penalties import full_precision
from ..sites.site import Slot

CELLS = 1 << 24  # entries of the largest words-by-vocabulary block held at a time


@dataclass
class WordDirections:
    """From each word to its nearest words, or to the whole vocabulary; turns a gradient into a sum of such directions.

    Neighbours are found by cosine, only for the words that occur, and found again once they are `refresh` steps old: a
    step costs a product of its new words with the vocabulary, not of the vocabulary with itself. On an accelerator, where
    counting the new words would make the host wait, those of the whole vocabulary are found every `refresh` steps.

    >>> embedding = nn.Embedding.from_pretrained(torch.tensor([[0.0, 0], [1, 0], [1, 0.1], [0, 1], [0.1, 1]]), padding_idx=0)
    >>> words = WordDirections(embedding, neighbours=1)
    >>> words.nearest(torch.tensor([1, 3])).tolist()
    [[2], [4]]

    Args:
        embedding: the layer whose rows are the words.
        neighbours: how many nearest words give a direction; None: every word of the vocabulary.
        refresh: number of steps after which a word's neighbours are looked for again.

    Reference: Sato et al. 2018, eq. 8-12; Kitada and Iyatomi set neighbours as the released code of both does (10).
    """

    embedding: nn.Embedding
    neighbours: int | None = 10
    refresh: int = 100
    step: int = 0
    _found: Tensor | None = field(default=None, repr=False)
    _age: Tensor | None = field(default=None, repr=False)
    _whole: int | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        count, spare = self.embedding.num_embeddings, 1 if self.embedding.padding_idx is None else 2
        if self.neighbours is not None and not 1 <= self.neighbours <= count - spare:
            raise ValueError(
                f"WordDirections(neighbours={self.neighbours}): a vocabulary of {count} has 1 to {count - spare} others"
            )
        if self.refresh < 1:
            raise ValueError(f"WordDirections(refresh={self.refresh}): at least 1 step")

    def _table(self) -> Tensor:
        weight: Any = self.embedding.weight.detach()
        whole = weight.full_tensor() if hasattr(weight, "full_tensor") else weight  # each process may hold a part
        return full_precision(whole)

    @torch.no_grad()
    def nearest(self, words: Tensor, table: Tensor | None = None) -> Tensor:
        """(N, neighbours) ids of the nearest words by cosine, the word itself and padding left out."""
        assert self.neighbours is not None
        if self._found is None or self._age is None or self._found.device != words.device:
            shape = (self.embedding.num_embeddings, self.neighbours)
            self._found = torch.zeros(shape, dtype=torch.long, device=words.device)
            self._age = torch.full(shape[:1], -self.refresh - 1, dtype=torch.long, device=words.device)
            self._whole = None
        stale = self._stale(words, self._age)
        if len(stale):
            unit = nn.functional.normalize(self._table() if table is None else table, dim=-1)
            for part in stale.split(max(1, CELLS // len(unit))):
                likeness = unit[part] @ unit.T
                likeness[torch.arange(len(part), device=part.device), part] = -torch.inf
                if self.embedding.padding_idx is not None:
                    likeness[:, self.embedding.padding_idx] = -torch.inf
                self._found[part] = likeness.topk(self.neighbours).indices
            self._age[stale] = self.step
        return self._found[words]

    def _stale(self, words: Tensor, age: Tensor) -> Tensor:
        """The words whose neighbours must be looked for in this step."""
        if words.device.type == "cpu":
            unique = words.unique()
            return unique[self.step - age[unique] >= self.refresh]
        if self._whole is not None and self.step - self._whole < self.refresh:
            return words[:0]
        self._whole = self.step
        return torch.arange(len(age), device=words.device)

    @torch.no_grad()
    def combine(self, slot: Slot, gradient: Tensor) -> Tensor:
        """The gradient as a sum of word directions: weights `g . d_k`, of norm 1 per word (alpha starts at 0)."""
        ids = slot.words
        if ids is None:
            raise ValueError(f"WordDirections: {slot.name} does not know its words; play at sp.Words({slot.module!r})")
        if ids.shape != gradient.shape[:-1]:
            raise ValueError(
                f"WordDirections: {slot.name} holds {tuple(gradient.shape)} but the words looked up are {tuple(ids.shape)}"
            )
        size = gradient.shape[-1]
        vectors, gradients = (full_precision(x).reshape(-1, size) for x in (slot.value, gradient))
        moves = (
            self._to_all(vectors, gradients)
            if self.neighbours is None
            else self._to_nearest(vectors, gradients, ids.flatten())
        )
        return moves.view_as(gradient).to(gradient.dtype)

    def _to_nearest(self, vectors: Tensor, gradients: Tensor, words: Tensor) -> Tensor:
        table = self._table()  # once, and always: among processes they gather it together
        directions = nn.functional.normalize(table[self.nearest(words, table)] - vectors[:, None], dim=-1)  # (N, K, d)
        weights = nn.functional.normalize((directions @ gradients[:, :, None]).squeeze(-1), dim=-1)
        return (weights[:, None] @ directions).squeeze(1)

    def _to_all(self, vectors: Tensor, gradients: Tensor) -> Tensor:
        """The same over the whole vocabulary without a (words, vocabulary, d) tensor: three products per block of words."""
        table = self._table()
        if (padding := self.embedding.padding_idx) is not None:
            table = torch.cat([table[:padding], table[padding + 1 :]])
        squares, moves = table.square().sum(-1), []
        for w, g in zip(*(x.split(max(1, CELLS // len(table))) for x in (vectors, gradients)), strict=True):
            apart = squares - 2 * (w @ table.T) + w.square().sum(-1, keepdim=True)  # (n, V) squared distances
            # Cancellation leaves a few rounding errors of the squares where a word meets itself: no direction there.
            near = apart <= 8 * torch.finfo(w.dtype).eps * (squares + w.square().sum(-1, keepdim=True))
            inverse = apart.clamp_min(1e-30).rsqrt().masked_fill(near, 0.0)
            weights = nn.functional.normalize((g @ table.T - (g * w).sum(-1, keepdim=True)) * inverse, dim=-1) * inverse
            moves.append(weights @ table - weights.sum(-1, keepdim=True) * w)
        return torch.cat(moves)
