"""The set of inputs a certificate speaks about: a norm ball, optionally cut to the range of valid data."""

from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor


@dataclass(frozen=True)
class Region:
    """All `x'` with `||x' - x||_norm <= epsilon`; an L-infinity ball may be cut to `low <= x' <= high`.

    Example:
        >>> import torch
        >>> region = Region(torch.tensor([[0.1, 0.5]]), 0.2, low=0.0, high=1.0)
        >>> region.lower, region.upper
        (tensor([[0.0000, 0.3000]]), tensor([[0.3000, 0.7000]]))
    """

    centre: Tensor
    epsilon: float | Tensor  # (B,) when each example has its own
    norm: float = inf
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        if self.norm not in (1, 2, inf):
            raise ValueError(f"norm is {self.norm}; use 1, 2 or float('inf')")
        if not bool((torch.as_tensor(self.epsilon) >= 0).all()):
            raise ValueError(f"epsilon is {self.epsilon}; a radius is a number and cannot be negative")

    def _radius(self) -> Tensor:
        radius = torch.as_tensor(self.epsilon, dtype=self.centre.dtype, device=self.centre.device)
        return radius.expand(len(self.centre))

    def _box(self) -> tuple[Tensor, Tensor]:
        radius = self._radius().reshape(-1, *[1] * (self.centre.dim() - 1))
        lower, upper = self.centre - radius, self.centre + radius
        if self.low is not None:
            lower = torch.maximum(lower, self.centre.clamp(max=self.low))
        if self.high is not None:
            upper = torch.minimum(upper, self.centre.clamp(min=self.high))
        return lower, upper

    @property
    def lower(self) -> Tensor:
        """The smallest value each coordinate can take."""
        return self._box()[0]

    @property
    def upper(self) -> Tensor:
        """The largest value each coordinate can take."""
        return self._box()[1]

    def minimum(self, rows: Tensor, example: Tensor) -> Tensor:
        """Least value over the region of the linear functions `rows` (R, ...), row i about example `example[i]`."""
        flat = rows.flatten(1)
        if self.norm == inf:
            lower, upper = (side.flatten(1)[example] for side in self._box())
            return (flat * (lower + upper) / 2 - flat.abs() * (upper - lower) / 2).sum(1)
        dual = flat.norm(dim=1) if self.norm == 2 else flat.abs().amax(1)
        return (flat * self.centre.flatten(1)[example]).sum(1) - self._radius()[example] * dual
