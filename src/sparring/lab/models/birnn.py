"""The attention models of Kitada and Iyatomi (after Jain and Wallace): one sequence, or a pair of them.

Token ids come padded with 0; the model finds the padding itself. An empty row (all padding) is legal: its attention is all 0
and the prediction is the bias of the head.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from ...nn.attention import AdditiveAttention, ScaledDotAttention

PAD = 0
Kind = Literal["lstm", "gru", "cnn"]
Comparison = Literal["additive", "dot"]


class Encoder(nn.Module):
    """Turns word vectors (B, T, d) into states (B, T, features) and one summary (B, features) of the sequence.

    The recurrent encoders run in both directions over the valid part only, and the summary is the last state of each
    direction (eq. 1 and 6). The convolutional one sees windows of 1, 3, 5 and 7 words and sums up by the maximum.

    >>> states, summary = Encoder(5, 8, "gru")(torch.randn(2, 4, 5), torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]).bool())
    >>> states.shape, summary.shape
    (torch.Size([2, 4, 8]), torch.Size([2, 8]))

    Args:
        size: width d of the word vectors.
        features: width of the states, both directions together.
        kind: "lstm", "gru" or "cnn".
    """

    def __init__(self, size: int, features: int, kind: Kind = "lstm") -> None:
        super().__init__()
        parts = {"lstm": 2, "gru": 2, "cnn": 4}
        if kind not in parts:
            raise ValueError(f"Encoder(kind={kind!r}): choose one of {', '.join(parts)}")
        if features % parts[kind]:
            raise ValueError(f"Encoder(features={features}): a {kind} needs a multiple of {parts[kind]}")
        self.kind, self.features, part = kind, features, features // parts[kind]
        if kind == "cnn":
            self.windows = nn.ModuleList(nn.Conv1d(size, part, width, padding=width // 2) for width in (1, 3, 5, 7))
        else:
            recurrent = nn.LSTM if kind == "lstm" else nn.GRU
            self.ahead = recurrent(size, part, batch_first=True)
            self.back = recurrent(size, part, batch_first=True)

    def forward(self, vectors: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """States (zero on padding) and summary of `vectors`; `valid` (B, T) is True on the real words, which come first."""
        return self._convolve(vectors, valid) if self.kind == "cnn" else self._recur(vectors, valid)

    def _recur(self, vectors: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        # Each direction runs over a dense batch whose padding comes last, so it cannot reach the valid states. Packed
        # sequences give the same numbers through a kernel whose backward pass is two to five times slower on a CPU.
        lengths, time = valid.sum(1, keepdim=True), torch.arange(valid.shape[1], device=valid.device)
        turned = torch.where(time < lengths, lengths - 1 - time, time)  # (B, T): the valid part read from its end
        ahead, _ = self.ahead(vectors)
        back, _ = self.back(_pick(vectors, turned))
        states = torch.cat([ahead, _pick(back, turned)], -1) * valid.unsqueeze(-1)
        last = (lengths - 1).clamp_min(0)
        summary = torch.cat([_pick(ahead, last), _pick(back, last)], -1).squeeze(1)
        return states, summary.masked_fill(lengths == 0, 0.0)

    def _convolve(self, vectors: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        inside = (vectors * valid.unsqueeze(-1)).transpose(1, 2)
        states = torch.cat([window(inside) for window in self.windows], 1).relu().transpose(1, 2)
        states = states * valid.unsqueeze(-1)  # after the relu nothing is below 0, so padding never is the maximum
        return states, states.amax(1)


def _pick(states: Tensor, index: Tensor) -> Tensor:
    """Rows `index` (B, n) of the sequences (B, T, d)."""
    return states.gather(1, index.unsqueeze(-1).expand(-1, -1, states.shape[-1]))


def _attention(kind: Comparison, features: int, query_features: int | None) -> nn.Module:
    if kind == "additive":
        return AdditiveAttention(features, query_features=query_features)
    if kind == "dot":
        return ScaledDotAttention(features, query_features=query_features)
    raise ValueError(f"attention={kind!r}: choose 'additive' or 'dot'")


def _embedding(words: int, size: int, vectors: Tensor | None) -> nn.Embedding:
    embedding = nn.Embedding(words, size, padding_idx=PAD)
    if vectors is not None:
        if vectors.shape != embedding.weight.shape:
            raise ValueError(
                f"vectors have shape {tuple(vectors.shape)}, the embedding needs {tuple(embedding.weight.shape)}"
            )
        with torch.no_grad():
            embedding.weight.copy_(vectors)
            embedding.weight[PAD] = 0.0
    return embedding


class SingleSequence(nn.Module):
    """Classifies one sequence: embedding, encoder, attention, linear head (eq. 1-5). Used for SST, IMDB, AG News.

    >>> model = SingleSequence(words=20, size=6, features=8)
    >>> model(torch.tensor([[3, 7, 2], [5, 0, 0]])).shape
    torch.Size([2, 2])

    Args:
        words: vocabulary size; id 0 is padding.
        size: width of the word vectors (paper: 300).
        features: width of the encoder, both directions together (paper: 256).
        classes: number of logits. Two classes with a softmax are the paper's sigmoid on the difference of the logits.
        encoder: "lstm" (paper), "gru" or "cnn".
        attention: "additive" (paper) or "dot".
        vectors: initial word vectors (words, size).
    """

    def __init__(
        self,
        words: int,
        size: int = 300,
        features: int = 256,
        classes: int = 2,
        encoder: Kind = "lstm",
        attention: Comparison = "additive",
        vectors: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.embedding = _embedding(words, size, vectors)
        self.encoder = Encoder(size, features, encoder)
        self.attention = _attention(attention, features, None)
        self.head = nn.Linear(features, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (B, classes) of token ids (B, T)."""
        valid = tokens != PAD
        states, _ = self.encoder(self.embedding(tokens), valid)
        pooled, _ = self.attention(states, valid=valid)
        return self.head(pooled)


class PairSequence(nn.Module):
    """Answers a question about a paragraph, or relates two sentences (eq. 6-8): attention over the first, asked by the second.

    Two encoders, attention over the first sequence with the summary of the second as query, head `tanh(W_p h_a + W_q h_q)`.

    >>> model = PairSequence(words=20, size=6, features=8, classes=4)
    >>> paragraph, question = torch.tensor([[3, 7, 2, 9], [5, 4, 0, 0]]), torch.tensor([[8, 2], [8, 0]])
    >>> model(paragraph, question).shape
    torch.Size([2, 4])
    >>> entities = torch.tensor([[1, 1, 0, 0], [0, 1, 1, 0]]).bool()
    >>> model(paragraph, question, entities).argmax(-1).tolist()[0] in (0, 1)
    True

    Args:
        words: vocabulary size; id 0 is padding.
        size: width of the word vectors (paper: 300; bAbI 50).
        features: width of each encoder, both directions together (paper: 256; bAbI 64).
        classes: number of answers, or 3 for natural language inference.
        encoder: "lstm" (paper), "gru" or "cnn".
        attention: "additive" (paper) or "dot".
        vectors: initial word vectors (words, size).
    """

    def __init__(
        self,
        words: int,
        size: int = 300,
        features: int = 256,
        classes: int = 3,
        encoder: Kind = "lstm",
        attention: Comparison = "additive",
        vectors: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.embedding = _embedding(words, size, vectors)
        self.paragraph_encoder = Encoder(size, features, encoder)
        self.question_encoder = Encoder(size, features, encoder)
        self.attention = _attention(attention, features, features)
        self.from_paragraph = nn.Linear(features, features)
        self.from_question = nn.Linear(features, features, bias=False)
        self.head = nn.Linear(features, classes)

    def forward(self, paragraph: Tensor, question: Tensor, entities: Tensor | None = None) -> Tensor:
        """Logits (B, classes); classes whose entry in `entities` (B, classes) is False cannot be the answer."""
        valid = paragraph != PAD
        _, query = self.question_encoder(self.embedding(question), question != PAD)
        states, _ = self.paragraph_encoder(self.embedding(paragraph), valid)
        pooled, _ = self.attention(states, query=query, valid=valid)
        logits = self.head(torch.tanh(self.from_paragraph(pooled) + self.from_question(query)))
        if entities is None:
            return logits
        # Finite, so that 0 * log 0 in a divergence stays 0 and not NaN.
        return logits.masked_fill(~entities, torch.finfo(logits.dtype).min / 4)
