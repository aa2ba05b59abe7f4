"""Where the units of a layer sit in its input, and which of them share one random draw."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Units:
    """Lays per-unit rates along an input's unit axis and says how large a random mask is.

    >>> import torch
    >>> images = torch.zeros(4, 3, 8, 8)
    >>> Units(dim=1).shape(images), Units(dim=1, share=False).shape(images)
    ((4, 3, 1, 1), (4, 3, 8, 8))
    >>> Units(dim=-1).shape(torch.zeros(4, 10, 16))          # one mask per sequence
    (4, 1, 16)

    Args:
        dim: axis of the input that counts units: 1 for `(B, K)` and `(B, C, H, W)`, -1 for `(B, T, K)`.
        share: True draws once per example and unit and shares the draw along every other axis (channel-wise masks for
            convolutions); False draws every element on its own.
    """

    dim: int = 1
    share: bool = True

    def axis(self, input: Tensor) -> int:
        """The unit axis counted from the front, checked against the input."""
        axis = self.dim if self.dim >= 0 else input.dim() + self.dim
        if input.dim() < 2 or not 1 <= axis < input.dim():
            raise ValueError(
                f"dim={self.dim} is no unit axis of an input of shape {tuple(input.shape)}; use 1 .. ndim-1"
            )
        return axis

    def shape(self, input: Tensor) -> tuple[int, ...]:
        """The shape of a mask for this input; broadcastable to it, batch first."""
        axis = self.axis(input)
        if not self.share:
            return tuple(input.shape)
        return tuple(size if i in (0, axis) else 1 for i, size in enumerate(input.shape))

    def place(self, rates: Tensor, input: Tensor) -> Tensor:
        """Lay `(K,)` or `(1,)` rates along the unit axis: `(1, K, 1, 1)` for an image batch."""
        axis = self.axis(input)
        if rates.numel() not in (1, input.shape[axis]):
            hint = "; use dim=-1" if input.shape[-1] == rates.numel() else ""
            raise ValueError(
                f"features={rates.numel()} does not fit axis {self.dim} of an input of shape {tuple(input.shape)}{hint}"
            )
        return rates.reshape([-1 if i == axis else 1 for i in range(input.dim())])
