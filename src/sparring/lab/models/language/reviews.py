"""A reader of reviews: first a language model, then, with the same embedding and LSTM, a classifier.

>>> import torch
>>> share = torch.full((50,), 1 / 50)
>>> reader, classifier = ReviewReader(share, size=8, hidden=12), ReviewClassifier(share, size=8, hidden=12)
>>> reader(torch.randint(2, 50, (3, 5))).outputs.shape
torch.Size([3, 5, 12])
>>> classifier(torch.tensor([[5, 9, 2], [7, 2, 0]])).shape  # padded with 0
torch.Size([2, 2])
"""

import torch
from torch import Tensor, nn

from ....nn.dropout.locked import LockedDropout
from .awd_lstm import Reading, State

PAD = 0


class WordVectors(nn.Module):
    """Word vectors with mean zero and variance one over a corpus, and one dropout mask for a whole text.

    Perturbations of a fixed norm mean something only if the model cannot make its vectors longer; so they are normalised
    by the words' frequencies whenever they are looked up.

    Args:
        share: how often each word occurs, (V,), summing to one.
        size: width of the vectors.
        drop: dropout, the same units at every word of a text.
        vectors: initial values (V, size).

    Paper: Miyato, Dai and Goodfellow, Adversarial Training Methods for Semi-Supervised Text Classification (2017), eq. 1.
    """

    share: Tensor

    def __init__(self, share: Tensor, size: int, drop: float = 0.5, vectors: Tensor | None = None) -> None:
        super().__init__()
        if vectors is not None and vectors.shape != (len(share), size):
            raise ValueError(f"vectors have shape {tuple(vectors.shape)}, the embedding needs {(len(share), size)}")
        self.weight = nn.Parameter(
            torch.empty(len(share), size).uniform_(-1, 1) if vectors is None else vectors.clone()
        )
        self.register_buffer("share", share[:, None], persistent=False)
        self.drop = LockedDropout(drop)

    def table(self) -> Tensor:
        """All vectors, normalised."""
        mean = (self.share * self.weight).sum(0)
        variance = (self.share * (self.weight - mean).square()).sum(0)
        return (self.weight - mean) / (variance + 1e-6).sqrt()

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, T) -> (B, T, size)."""
        return self.drop(nn.functional.embedding(tokens, self.table()))


class ReviewReader(nn.Module):
    """The language model of the first stage: one LSTM that guesses the next word.

    Args:
        share: how often each word occurs, (V,).
        size: width of the word vectors (paper: 256 on IMDB, 512 on Elec).
        hidden: units of the LSTM (paper: 1024).
        drop: dropout of the word vectors (paper: .5).
        vectors: initial word vectors.
    """

    def __init__(self, share: Tensor, size: int, hidden: int, drop: float = 0.5, vectors: Tensor | None = None) -> None:
        super().__init__()
        self.embedding = WordVectors(share, size, drop, vectors)
        self.lstm = nn.LSTM(size, hidden, batch_first=True)
        self.table = nn.Parameter(torch.randn(len(share), hidden) * hidden**-0.5)
        self.bias = nn.Parameter(torch.zeros(len(share)))

    def forward(self, tokens: Tensor, state: State | None = None) -> Reading:
        """Read a window (B, T) on from a state."""
        outputs, after = self.lstm(self.embedding(tokens), None if state is None else state[0])
        return Reading(outputs, [after])


class ReviewClassifier(nn.Module):
    """The classifier of the second stage: the LSTM's state at the end token, a hidden layer, two logits.

    Long texts are read in pieces of `truncate` words. The state is carried from piece to piece, gradients are not.

    Args:
        share: how often each word occurs, (V,); id 0 is padding, which comes last.
        size, hidden, drop, vectors: as in `ReviewReader`.
        head: units of the hidden layer (paper: 30).
        truncate: words through which gradients flow back (paper: 400).
    """

    def __init__(
        self,
        share: Tensor,
        size: int,
        hidden: int,
        drop: float = 0.5,
        vectors: Tensor | None = None,
        head: int = 30,
        truncate: int = 400,
    ) -> None:
        super().__init__()
        if truncate < 1:
            raise ValueError(f"ReviewClassifier(truncate={truncate}): gradients flow back through at least 1 word")
        self.embedding = WordVectors(share, size, drop, vectors)
        self.lstm = nn.LSTM(size, hidden, batch_first=True)
        self.last = nn.Dropout(0.0)  # a place for a mask on the last hidden state
        self.head = nn.Linear(hidden, head)
        self.output = nn.Linear(head, 2)
        self.truncate = truncate

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, T) -> (B, 2)."""
        end = (tokens != PAD).sum(1).clamp_min(1) - 1
        vectors, state, last = self.embedding(tokens), None, None
        for number, piece in enumerate(vectors.split(self.truncate, 1)):
            outputs, state = self.lstm(piece, state)
            state = (state[0].detach(), state[1].detach())
            place = (end - number * self.truncate).clamp(0, piece.shape[1] - 1)
            found = outputs[torch.arange(len(tokens), device=tokens.device), place]
            last = found if last is None else torch.where((end // self.truncate == number)[:, None], found, last)
        assert last is not None
        return self.output(self.head(self.last(last)).relu())
