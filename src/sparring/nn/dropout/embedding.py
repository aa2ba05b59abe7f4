"""Dropout of whole words."""

import torch
from torch import Tensor, nn


class EmbeddingDropout(nn.Module):
    """An embedding that drops whole words: every occurrence of a word in the batch, with one draw per word type.

    >>> layer = EmbeddingDropout(nn.Embedding(10, 3), drop=0.3)
    >>> layer(torch.tensor([[1, 2, 1]])).shape
    torch.Size([1, 3, 3])

    Only the rows that are looked up are scaled; the table itself is neither copied nor changed, so tied weights stay tied.

    Args:
        embedding: the table.
        drop: drop rate in [0, 1); kept words are divided by 1 - drop.

    Paper: Gal and Ghahramani (2016), section 4.2; Merity, Keskar and Socher (2018), section 4.3.
    """

    def __init__(self, embedding: nn.Embedding, drop: float = 0.1) -> None:
        super().__init__()
        if not 0 <= drop < 1:
            raise ValueError(f"EmbeddingDropout(drop={drop}): a drop rate lies in [0, 1)")
        self.embedding = embedding
        self.drop = drop

    @property
    def weight(self) -> Tensor:
        return self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        vectors = self.embedding(tokens)
        if not self.training or not self.drop:
            return vectors
        kept = torch.bernoulli(vectors.new_full((self.embedding.num_embeddings, 1), 1 - self.drop)) / (1 - self.drop)
        return vectors * kept[tokens]

    def extra_repr(self) -> str:
        return f"drop={self.drop}"
