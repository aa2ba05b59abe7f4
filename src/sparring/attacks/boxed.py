"""A norm ball cut to the range of valid data."""

from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor

from ..balls.norms import L2, Ball, Linf


def ball(norm: float, radius: float) -> Ball:
    """The ball of a norm given as a number.

    Example:
        >>> ball(2, 0.5)
        L2(radius=0.5, rows=False)
    """
    if norm == inf:
        return Linf(radius)
    if norm == 2:
        return L2(radius)
    raise ValueError(f"norm is {norm}; attacks know 2 and float('inf')")


@dataclass(frozen=True)
class Boxed:
    """A ball whose projection also keeps `inputs + perturbation` between `low` and `high`.

    Example:
        >>> import torch
        >>> inside = Boxed(Linf(0.5), torch.tensor([[0.8, 0.1]]), 0.0, 1.0)
        >>> inside.project(torch.tensor([[0.9, -0.3]]))
        tensor([[ 0.2000, -0.1000]])

    Args:
        within: the norm ball.
        inputs: the clean inputs (B, ...).
        low: smallest valid value, None for no limit.
        high: largest valid value, None for no limit.
    """

    within: Ball
    inputs: Tensor
    low: float | None
    high: float | None

    @property
    def radius(self) -> float:
        return self.within.radius

    @property
    def rows(self) -> bool:
        return self.within.rows

    def norm(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        return self.within.norm(x, valid)

    def project(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """First the ball, then the range: the second step never leaves the ball, for inputs inside the range."""
        return clip(self.inputs + self.within.project(x, valid), self.low, self.high) - self.inputs

    def normalise(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        return self.within.normalise(x, valid)

    def steepest(self, gradient: Tensor, valid: Tensor | None = None) -> Tensor:
        return self.within.steepest(gradient, valid)

    def sample(self, like: Tensor, valid: Tensor | None = None) -> Tensor:
        return self.project(self.within.sample(like, valid), valid)

    def interior(self, like: Tensor, valid: Tensor | None = None) -> Tensor:
        """Uniform in the ball, then cut to the range (for L2 the ball itself, not the cube inside it)."""
        if isinstance(self.within, L2):
            share = torch.rand(len(like), *[1] * (like.dim() - 1), dtype=like.dtype, device=like.device)
            return self.project(self.within.sample(like, valid) * share ** (1 / like[0].numel()), valid)
        return self.project(self.within.interior(like, valid), valid)


def clip(x: Tensor, low: float | None, high: float | None) -> Tensor:
    """Clamp to the range; None means no limit on that side."""
    return x if low is None and high is None else torch.clamp(x, low, high)


def check_range(inputs: Tensor, low: float | None, high: float | None) -> None:
    """Refuse inputs outside the range: clipping would move them further than the attack's radius."""
    outside = (low is not None and bool((inputs < low).any())) or (high is not None and bool((inputs > high).any()))
    if outside:
        raise ValueError(
            f"inputs run from {inputs.min().item():.4g} to {inputs.max().item():.4g}, outside low={low}, high={high}; "
            f"pass the range your data has, or low=None, high=None"
        )
