"""The ball of the largest entry."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .ball import Ball, axes, check_radius, columns, masked, show
from .box import Box, as_box


@dataclass(frozen=True, repr=False)
class Linf(Ball):
    """Largest-entry ball: no entry of an example's perturbation exceeds the radius.

    >>> Linf(0.5).project(torch.tensor([[3.0, -0.2]]))
    tensor([[ 0.5000, -0.2000]])
    >>> Linf(0.5, box=(0, 1)).project(torch.tensor([[3.0, -0.2]]), around=torch.tensor([[0.9, 0.1]]))
    tensor([[ 0.1000, -0.1000]])

    Args:
        radius: largest absolute entry.
        rows: normalise gradients row by row (last dimension) instead of over the whole example.
        box: (low, high), the range of valid data: numbers, one number per channel, None for an open side. With pixels in
            [0, 1] write `box=(0, 1)`.
    """

    radius: float
    rows: bool = False
    box: Box | Sequence[object] | None = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        check_radius(self)
        object.__setattr__(self, "box", as_box(self.box, f"Linf({self.radius})"))

    __repr__ = show

    def norm(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """(B,) largest absolute entries."""
        x = columns(masked(x, valid))
        return x.abs().flatten(1).amax(1)

    def project(self, x: Tensor, valid: Tensor | None = None, *, around: Tensor | None = None) -> Tensor:
        """The nearest point: ball and box are both boxes, and so is what they share."""
        x = masked(x, valid).clamp(-self.radius, self.radius)
        return self.in_box(x, valid, around=around)

    def normalise(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """`x` scaled so that its largest entry is 1; a row that is zero or not finite becomes zero."""
        shaped = columns(masked(x, valid))
        peak = shaped.abs().amax(axes(shaped, self.rows), keepdim=True)
        sound = torch.isfinite(peak) & (peak > 0)
        return torch.where(sound, shaped / torch.where(sound, peak, 1.0), 0.0).view_as(x)

    def steepest(self, gradient: Tensor, valid: Tensor | None = None) -> Tensor:
        """The sign of the gradient; an example whose gradient is not finite stays put."""
        return self.normalise(gradient, valid).sign()

    def sample(self, like: Tensor, valid: Tensor | None = None, *, around: Tensor | None = None) -> Tensor:
        """Uniform in the cube, pushed out to its surface, then cut to the box."""
        point = self.radius * self.normalise(torch.empty_like(like).uniform_(-1, 1), valid)
        return self.in_box(point, valid, around=around)

    def interior(self, like: Tensor, valid: Tensor | None = None, *, around: Tensor | None = None) -> Tensor:
        """Uniform in the cube, then cut to the box."""
        point = masked(torch.empty_like(like).uniform_(-1, 1) * self.radius, valid)
        return self.in_box(point, valid, around=around)
