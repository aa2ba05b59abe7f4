"""AWD-LSTM: a stack of LSTMs with every kind of dropout, and one matrix for reading and writing words.

>>> import torch
>>> model = AWDLSTM(words=50, size=8, hidden=12, layers=2)
>>> first = model(torch.randint(50, (3, 5)))
>>> first.outputs.shape  # what the vocabulary sees, and beside it the same without dropout
torch.Size([3, 5, 16])
>>> model(torch.randint(50, (3, 5)), first.state).outputs.shape
torch.Size([3, 5, 16])
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from ....nn.dropout.embedding import EmbeddingDropout
from ....nn.dropout.locked import LockedDropout
from ....nn.dropout.weight_drop import WeightDrop

State = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Reading:
    """What a language model makes of a window.

    Attributes:
        outputs: the last layer's states with dropout, then without, (B, T, 2 * size).
        state: what it remembers, one pair a layer; goes with the next window.
    """

    outputs: Tensor
    state: State


class AWDLSTM(nn.Module):
    """The language model of Merity, Keskar and Socher (2018).

    Words are dropped whole, states between layers are dropped with one mask for all time steps, recurrent weights are
    dropped once a call. The embedding is also the output layer (tied), so the last layer is as wide as a word vector.
    The logits are not computed here: `VocabularyHead` does that piece by piece where they are needed.

    Args:
        words: vocabulary size.
        size: width of the word vectors and of the last layer (paper: 400).
        hidden: units of the other layers (paper: 1150).
        layers: how many (paper: 3).
        drop_words: share of words dropped (paper: .1).
        drop_input: dropout of the word vectors (paper: .4).
        drop_hidden: dropout between layers (paper: .3, .25 in its first version).
        drop_output: dropout after the last layer (paper: .4).
        drop_weights: share of recurrent weights dropped (paper: .5).
    """

    def __init__(
        self,
        words: int,
        size: int = 400,
        hidden: int = 1150,
        layers: int = 3,
        drop_words: float = 0.1,
        drop_input: float = 0.4,
        drop_hidden: float = 0.3,
        drop_output: float = 0.4,
        drop_weights: float = 0.5,
    ) -> None:
        super().__init__()
        if layers < 1:
            raise ValueError(f"AWDLSTM(layers={layers}): at least 1")
        self.embedding = EmbeddingDropout(nn.Embedding(words, size), drop_words)
        widths = [size, *[hidden] * (layers - 1), size]
        self.rnns = nn.ModuleList(
            WeightDrop(nn.LSTM(before, after, batch_first=True), drop_weights) for before, after in pairwise(widths)
        )
        rates = [drop_input, *[drop_hidden] * (layers - 1), drop_output]
        self.drops = nn.ModuleList(LockedDropout(rate) for rate in rates)
        self.bias = nn.Parameter(torch.zeros(words))
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)

    @property
    def table(self) -> Tensor:
        """Word vectors (V, size), which are the output layer's weights too."""
        return self.embedding.weight

    def forward(self, tokens: Tensor, state: State | None = None) -> Reading:
        """Read a window of tokens (B, T) on from a state; None begins anew."""
        x, raw, left = self.drops[0](self.embedding(tokens)), None, []
        for layer, (rnn, drop) in enumerate(zip(self.rnns, self.drops[1:], strict=True)):
            raw, after = rnn(x, None if state is None else state[layer])
            left.append(after)
            x = drop(raw)
        assert raw is not None
        return Reading(torch.cat([x, raw], -1), left)
