"""Attention over a sequence whose pre-softmax scores can be reached: `sparring.Scores("attention")` acts on `.scores`."""

import math

import torch
from torch import Tensor, nn


def masked_softmax(scores: Tensor, valid: Tensor | None = None) -> Tensor:
    """Softmax over the last dimension that gives padding a weight of exactly 0.

    A row without any valid position gets weights of 0 (and gradients of 0), never NaN.

    >>> masked_softmax(torch.tensor([[1.0, 1.0, 9.0], [1.0, 2.0, 3.0]]), torch.tensor([[1, 1, 0], [0, 0, 0]]).bool())
    tensor([[0.5000, 0.5000, 0.0000],
            [0.0000, 0.0000, 0.0000]])

    Args:
        scores: (..., T).
        valid: True where a position counts, broadcastable to `scores`; None when all do.
    """
    if valid is None:
        return scores.softmax(-1)
    lowest = torch.finfo(scores.dtype).min
    return scores.masked_fill(~valid, lowest).softmax(-1).masked_fill(~valid, 0.0)


class ScorePoint(nn.Module):
    """The place where an attention layer's scores pass by: returns them as they are, so that hooks can act on them."""

    def forward(self, scores: Tensor, valid: Tensor | None = None) -> Tensor:
        return scores


def _check(hidden: Tensor, query: Tensor | None, valid: Tensor | None, pair: bool, name: str) -> None:
    if pair != (query is not None):
        wanted = "forward(hidden, query=...)" if pair else "forward(hidden)"
        raise ValueError(f"{name}: query is {'missing' if pair else 'given'}, but this layer was built for {wanted}")
    if valid is not None and (valid.dtype != torch.bool or valid.shape != hidden.shape[:2]):
        raise ValueError(
            f"{name}: valid must be a bool tensor of shape {tuple(hidden.shape[:2])} (True = a real word), "
            f"got {valid.dtype} of shape {tuple(valid.shape)}"
        )


def _pool(weights: Tensor, hidden: Tensor) -> Tensor:
    return torch.bmm(weights.unsqueeze(1), hidden).squeeze(1)  # (B, features)


class AdditiveAttention(nn.Module):
    """Pools a sequence by learned additive (Bahdanau) attention; the scores pass through the submodule `scores`.

    Single form, eq. 2: `c . tanh(W h_t + b)`. Pair form (`query_features` given), eq. 7: `c . tanh(W1 h_t + W2 q + b)`.

    >>> attention = AdditiveAttention(features=8)
    >>> hidden, valid = torch.randn(2, 5, 8), torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]).bool()
    >>> pooled, weights = attention(hidden, valid=valid)
    >>> pooled.shape, weights.sum(-1).allclose(torch.ones(2)), weights[1, 2:]
    (torch.Size([2, 8]), True, tensor([0., 0., 0.], grad_fn=<SliceBackward0>))

    Args:
        features: width m of the hidden states.
        size: width d' of the comparison; half of `features` when None (the setting of Jain and Wallace, which the
            attention AT/iAT paper follows).
        query_features: width of the query in the pair form; None: the single form.

    Reference: Kitada and Iyatomi, "Attention Meets Perturbations", eq. 2-4, 7-8.
    """

    def __init__(self, features: int, size: int | None = None, query_features: int | None = None) -> None:
        super().__init__()
        size = max(1, features // 2) if size is None else size
        self.project = nn.Linear(features, size)
        self.project_query = None if query_features is None else nn.Linear(query_features, size, bias=False)
        self.activation = nn.Tanh()
        self.compare = nn.Linear(size, 1, bias=False)
        self.scores = ScorePoint()

    def forward(
        self, hidden: Tensor, query: Tensor | None = None, valid: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The pooled states (B, features) and the weights (B, T) of `hidden` (B, T, features)."""
        _check(hidden, query, valid, self.project_query is not None, "AdditiveAttention")
        projected = self.project(hidden)  # (B, T, size)
        if self.project_query is not None:
            projected = projected + self.project_query(query).unsqueeze(1)
        scores = self.scores(self.compare(self.activation(projected)).squeeze(-1), valid)
        weights = masked_softmax(scores, valid)
        return _pool(weights, hidden), weights


class ScaledDotAttention(nn.Module):
    """Pools a sequence by scaled dot-product attention; the scores pass through the submodule `scores`.

    Single form: `c . h_t / sqrt(m)` with a learned query c. Pair form (`query_features` given): `q . h_t / sqrt(m)`, the
    query mapped to width m by a linear layer when its width differs.

    >>> attention = ScaledDotAttention(features=4, query_features=4)
    >>> pooled, weights = attention(torch.randn(3, 6, 4), query=torch.randn(3, 4))
    >>> pooled.shape, weights.shape
    (torch.Size([3, 4]), torch.Size([3, 6]))

    Args:
        features: width m of the hidden states.
        query_features: width of the query in the pair form; None: the single form.
    """

    def __init__(self, features: int, query_features: int | None = None) -> None:
        super().__init__()
        self.pair = query_features is not None
        self.scale = 1.0 / math.sqrt(features)
        self.compare = None if self.pair else nn.Linear(features, 1, bias=False)
        self.project_query: nn.Module = nn.Identity()
        if query_features not in (None, features):
            self.project_query = nn.Linear(query_features, features, bias=False)
        self.scores = ScorePoint()

    def forward(
        self, hidden: Tensor, query: Tensor | None = None, valid: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The pooled states (B, features) and the weights (B, T) of `hidden` (B, T, features)."""
        _check(hidden, query, valid, self.pair, "ScaledDotAttention")
        if self.compare is not None:
            raw = self.compare(hidden).squeeze(-1)
        else:
            raw = torch.bmm(hidden, self.project_query(query).unsqueeze(-1)).squeeze(-1)
        weights = masked_softmax(self.scores(raw * self.scale, valid), valid)
        return _pool(weights, hidden), weights
