"""Rows that are zero outside a window of the map they read, with the window alone in memory.

A unit of a convolution sees a small window of the image. Its row of coefficients is zero elsewhere, all the way back until the
windows have grown to the whole map, and zeros need neither memory nor products.
"""

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from .ops import Affine, ChannelAffine, Conv2d

Span = tuple[int, int]
Window = tuple[Span, Span]


@dataclass(frozen=True)
class Patch:
    """Rows (R, ...) of coefficients; with a window (first and last + 1, of lines and columns) of maps (R, C, h, w).

    Example:
        >>> import torch
        >>> Patch(torch.ones(1, 1, 1, 2), ((0, 1), (1, 3))).whole((1, 2, 3))
        tensor([[[[0., 1., 1.],
                  [0., 0., 0.]]]])
    """

    values: Tensor
    window: Window | None = None

    def whole(self, shape: tuple[int, ...]) -> Tensor:
        """The rows of the whole map, zero outside the window."""
        return self.values if self.window is None else self._placed(((0, shape[1]), (0, shape[2])))

    def cut(self, value: Tensor) -> Tensor:
        """What stands in the window of maps (B, C, H, W)."""
        if self.window is None:
            return value
        (top, bottom), (left, right) = self.window
        return value[:, :, top:bottom, left:right]

    def plus(self, other: "Patch", shape: tuple[int, ...]) -> "Patch":
        if self.window == other.window:
            return Patch(self.values + other.values, self.window)
        if self.window is None or other.window is None:
            return Patch(self.whole(shape) + other.whole(shape))
        (a, b), (c, d) = zip(self.window, other.window, strict=True)
        both = (_around(a, b), _around(c, d))
        return Patch(self._placed(both) + other._placed(both), both)

    def back(self, op: Affine, shape: tuple[int, ...], into: tuple[int, ...]) -> "Patch":
        """Through an operation that gives `shape`, to the node of shape `into` that it reads."""
        if self.window is not None and isinstance(op, Conv2d):
            values, window = op.back_window(self.values, self.window, into)
            return Patch(values, window if window != ((0, into[1]), (0, into[2])) else None)
        if self.window is not None and isinstance(op, ChannelAffine):
            return Patch(op.back(self.values, into), self.window)
        return Patch(op.back(self.whole(shape), into))

    def _placed(self, window: Window) -> Tensor:
        assert self.window is not None
        (lines, columns), (new_lines, new_columns) = self.window, window
        around = (*_margins(columns, new_columns), *_margins(lines, new_lines))
        return F.pad(self.values, around) if any(around) else self.values


def _around(a: Span, b: Span) -> Span:
    return min(a[0], b[0]), max(a[1], b[1])


def _margins(inner: Span, outer: Span) -> Span:
    return inner[0] - outer[0], outer[1] - inner[1]
