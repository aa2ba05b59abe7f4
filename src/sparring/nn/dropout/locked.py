"""One dropout mask for a whole sequence."""

import torch
from torch import Tensor
from torch.nn.modules.dropout import _DropoutNd


class LockedDropout(_DropoutNd):
    """Dropout whose mask is the same at every time step (variational dropout on inputs and outputs of an RNN).

    >>> layer = LockedDropout(0.5)
    >>> kept = layer(torch.ones(2, 9, 4)) != 0
    >>> bool((kept == kept[:, :1]).all())
    True

    Args:
        p: drop rate; kept entries are divided by 1 - p.
        inplace: as in torch's dropout layers; accepted, the input is never overwritten.
        time: the dimension that counts time steps: 1 for (B, T, H), 0 for (T, B, H).

    Paper: Gal and Ghahramani, A Theoretically Grounded Application of Dropout in Recurrent Neural Networks (2016).
    """

    def __init__(self, p: float = 0.5, inplace: bool = False, time: int = 1) -> None:
        super().__init__(p, inplace)
        self.time = time

    def draw(self, input: Tensor) -> Tensor:
        """The multiplier for this input: size 1 along time, ones in evaluation."""
        shape = [1 if axis == self.time % input.dim() else size for axis, size in enumerate(input.shape)]
        ones = torch.ones(shape, dtype=input.dtype, device=input.device)
        return torch.nn.functional.dropout(ones, self.p, self.training)

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or not self.p:
            return input
        return input * self.draw(input)

    def extra_repr(self) -> str:
        return f"p={self.p}, time={self.time}"
