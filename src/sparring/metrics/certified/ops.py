"""The operations a certificate understands: each one knows its interval and how linear bounds pass back through it.

Every affine operation `y = J x + c` offers three views of itself: the map (`forward`), the map with `|J|` in place of
`J` and no constant (`spread`, which carries interval radii), and the transposed map (`back`). A ReLU is the only one
that is not affine; `crown` relaxes it.
"""

from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Linear:
    """`x W^T + b` over the last dimension."""

    weight: Tensor
    bias: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    def spread(self, radius: Tensor) -> Tensor:
        return F.linear(radius, self.weight.abs())

    def back(self, rows: Tensor, shape: tuple[int, ...]) -> Tensor:
        return rows @ self.weight

    def constant(self, rows: Tensor) -> Tensor | float:
        return 0.0 if self.bias is None else (rows @ self.bias).reshape(len(rows), -1).sum(1)


@dataclass(frozen=True)
class Conv2d:
    """Two-dimensional convolution with zero padding."""

    weight: Tensor
    bias: Tensor | None
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)

    def spread(self, radius: Tensor) -> Tensor:
        return F.conv2d(radius, self.weight.abs(), None, self.stride, self.padding, self.dilation, self.groups)

    def back(self, rows: Tensor, shape: tuple[int, ...]) -> Tensor:
        lines, columns = rows.shape[2:]
        found, ((top, bottom), (left, right)) = self.back_window(rows, ((0, lines), (0, columns)), shape)
        around = (left, shape[2] - right, top, shape[1] - bottom)  # what no window of the kernel reads
        return F.pad(found, around) if any(around) else found

    def back_window(
        self, rows: Tensor, window: tuple[tuple[int, int], tuple[int, int]], shape: tuple[int, ...]
    ) -> tuple[Tensor, tuple[tuple[int, int], tuple[int, int]]]:
        """Rows that hold a window of the outputs alone, and the window of inputs (of `shape`) that those read."""
        # With the channels last torch runs it up to four times faster on a CPU, and what comes out stays so.
        rows, weight = (x.contiguous(memory_format=torch.channels_last) for x in (rows, self.weight))
        found = F.conv_transpose2d(rows, weight, None, self.stride, 0, 0, self.groups, self.dilation)
        spans = []
        for i in range(2):
            start = window[i][0] * self.stride[i] - self.padding[i]
            first, last = max(start, 0), min(start + found.shape[i + 2], shape[i + 1])
            if first < last:
                found = found.narrow(i + 2, first - start, last - first)
            else:  # nothing but padding is read
                first, last, found = 0, 1, torch.zeros_like(found.narrow(i + 2, 0, 1))
            spans.append((first, last))
        return found, (spans[0], spans[1])

    def constant(self, rows: Tensor) -> Tensor | float:
        return 0.0 if self.bias is None else rows.sum((2, 3)) @ self.bias


@dataclass(frozen=True)
class ChannelAffine:
    """`x * scale + shift`, one pair per channel: batch normalisation in evaluation mode, or a constant factor."""

    scale: Tensor
    shift: Tensor

    def _view(self, value: Tensor, like: Tensor) -> Tensor:
        return value.reshape(1, -1, *[1] * (like.dim() - 2))

    def forward(self, x: Tensor) -> Tensor:
        return x * self._view(self.scale, x) + self._view(self.shift, x)

    def spread(self, radius: Tensor) -> Tensor:
        return radius * self._view(self.scale.abs(), radius)

    def back(self, rows: Tensor, shape: tuple[int, ...]) -> Tensor:
        return rows * self._view(self.scale, rows)

    def constant(self, rows: Tensor) -> Tensor:
        return (rows * self._view(self.shift, rows)).flatten(1).sum(1)


@dataclass(frozen=True)
class AveragePool:
    """Average pooling: a window, or (`window=None`) an adaptive grid of `grid` cells."""

    window: tuple[int, int] | None = None
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    ceil_mode: bool = False
    count_include_pad: bool = True
    grid: tuple[int | None, int | None] = (1, 1)

    def forward(self, x: Tensor) -> Tensor:
        if self.window is None:
            return F.adaptive_avg_pool2d(x, self.grid)
        return F.avg_pool2d(x, self.window, self.stride, self.padding, self.ceil_mode, self.count_include_pad)

    def spread(self, radius: Tensor) -> Tensor:
        return self.forward(radius)

    def back(self, rows: Tensor, shape: tuple[int, ...]) -> Tensor:
        with torch.enable_grad():
            probe = rows.new_zeros(len(rows), *shape, requires_grad=True)
            return torch.autograd.grad(self.forward(probe), probe, rows, create_graph=rows.requires_grad)[0]

    def constant(self, rows: Tensor) -> float:
        return 0.0


@dataclass(frozen=True)
class Reshape:
    """The same numbers in another shape: flatten, view, reshape, squeeze."""

    shape: tuple[int, ...]

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(len(x), *self.shape)

    def spread(self, radius: Tensor) -> Tensor:
        return self.forward(radius)

    def back(self, rows: Tensor, shape: tuple[int, ...]) -> Tensor:
        return rows.reshape(len(rows), *shape)

    def constant(self, rows: Tensor) -> float:
        return 0.0


@dataclass(frozen=True)
class Mean:
    """Mean over some dimensions (counted with the batch as dimension 0)."""

    dims: tuple[int, ...]
    keepdim: bool

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(self.dims, keepdim=self.keepdim)

    def spread(self, radius: Tensor) -> Tensor:
        return self.forward(radius)

    def back(self, rows: Tensor, shape: tuple[int, ...]) -> Tensor:
        if not self.keepdim:
            for dim in sorted(self.dims):
                rows = rows.unsqueeze(dim)
        return rows.expand(len(rows), *shape) / prod(shape[dim - 1] for dim in self.dims)

    def constant(self, rows: Tensor) -> float:
        return 0.0


@dataclass(frozen=True)
class Relu:
    """`max(x, 0)`: the one operation that needs a relaxation."""


@dataclass(frozen=True)
class Sum:
    """Residual addition: any number of inputs of one shape, each with its own constant factor."""

    factors: tuple[float, ...]


@dataclass(frozen=True)
class Source:
    """The network's input."""


Op = Linear | Conv2d | ChannelAffine | AveragePool | Reshape | Mean | Relu | Sum | Source
Affine = Linear | Conv2d | ChannelAffine | AveragePool | Reshape | Mean
AFFINE = (Linear, Conv2d, ChannelAffine, AveragePool, Reshape, Mean)


def merge(first: Op, second: ChannelAffine, shape: tuple[int, ...]) -> Linear | Conv2d | None:
    """One operation that does `first` (which gives `shape`), then `second`; None if there is none.

    A linear layer's outputs are channels only where it gives one dimension: over a sequence they come last.
    """
    if isinstance(first, Conv2d) or (isinstance(first, Linear) and len(shape) == 1):
        scale, shift = second.scale, second.shift if first.bias is None else second.shift + second.scale * first.bias
        return replace(first, weight=first.weight * scale.reshape(-1, *[1] * (first.weight.dim() - 1)), bias=shift)
    return None
