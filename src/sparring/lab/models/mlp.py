"""A multi-layer perceptron with batch norm."""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn


class MLP(nn.Module):
    """Linear, batch norm, ReLU and dropout for every hidden layer, then the linear layer `fc`.

    >>> import torch
    >>> tuple(MLP(64, (32, 32), 10)(torch.zeros(2, 64)).shape)
    (2, 10)

    Args:
        features: of the input.
        hidden: units of each hidden layer.
        classes: outputs of `fc`.
        drop: drop rate; the dropout layers are there at rate 0 too, for those who perturb their masks.
    """

    def __init__(self, features: int, hidden: Sequence[int], classes: int, drop: float = 0.0) -> None:
        super().__init__()
        sizes = (features, *hidden)
        self.hidden = nn.Sequential(
            *(
                nn.Sequential(nn.Linear(before, after), nn.BatchNorm1d(after), nn.ReLU(), nn.Dropout(drop))
                for before, after in pairwise(sizes)
            )
        )
        self.fc = nn.Linear(sizes[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.hidden(x))
