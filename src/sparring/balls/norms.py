"""Balls: how far a perturbation may go, per example.

A ball knows its norm, how to project into itself, which direction of unit size climbs fastest, and how to draw
random points. Players are written once and take any ball. `valid` is a boolean mask, broadcastable to the tensor, that
is False on padding: padding counts for nothing and always gets exactly zero.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

_TINY = 1e-30  # keeps a division by the norm of an all-zero row finite, in value and in gradient


@runtime_checkable
class Ball(Protocol):
    """What a player asks of a norm ball; `L2` and `Linf` are the two we ship."""

    @property
    def radius(self) -> float: ...
    @property
    def rows(self) -> bool: ...
    def norm(self, x: Tensor, valid: Tensor | None = None) -> Tensor: ...
    def project(self, x: Tensor, valid: Tensor | None = None) -> Tensor: ...
    def normalise(self, x: Tensor, valid: Tensor | None = None) -> Tensor: ...
    def steepest(self, gradient: Tensor, valid: Tensor | None = None) -> Tensor: ...
    def sample(self, like: Tensor, valid: Tensor | None = None) -> Tensor: ...
    def interior(self, like: Tensor, valid: Tensor | None = None) -> Tensor: ...


def masked(x: Tensor, valid: Tensor | None) -> Tensor:
    """`x` with exact zeros where `valid` is False (also where `x` is not finite there)."""
    return x if valid is None else torch.where(valid, x, torch.zeros((), dtype=x.dtype, device=x.device))


def _check_radius(name: str, radius: float) -> None:
    if not 0 <= radius < float("inf"):
        raise ValueError(f"{name}(radius={radius}) is not a ball: give a finite radius >= 0")


def _axes(x: Tensor, rows: bool) -> tuple[int, ...]:
    if rows:
        return (-1,)
    return tuple(range(1, x.dim())) or (-1,)


def _columns(x: Tensor) -> Tensor:
    """A one-number-per-example tensor (B,) seen as (B, 1), so that axis 0 always stays the example."""
    return x.unsqueeze(-1) if x.dim() == 1 else x


def _peak(x: Tensor, rows: bool) -> Tensor:
    return x.detach().abs().amax(_axes(x, rows), keepdim=True)


@dataclass(frozen=True)
class L2:
    """Euclidean ball around the clean value, one per example (over all its valid positions).

    >>> ball = L2(1.0)
    >>> ball.project(torch.tensor([[3.0, 4.0], [0.3, 0.4]]))
    tensor([[0.6000, 0.8000],
            [0.3000, 0.4000]])

    Args:
        radius: largest norm of an example's perturbation.
        rows: give every row (last dimension) a ball of its own, for example each attention query.
    """

    radius: float
    rows: bool = False

    def __post_init__(self) -> None:
        _check_radius("L2", self.radius)

    def _length(self, x: Tensor) -> Tensor:
        return x.square().sum(_axes(x, self.rows), keepdim=True).clamp_min(_TINY).sqrt()

    def norm(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """(B,) norms; with `rows` the largest row counts."""
        x = _columns(masked(x, valid))
        lengths = torch.linalg.vector_norm(x, dim=_axes(x, self.rows))
        return lengths.flatten(1).amax(1) if lengths.dim() > 1 else lengths

    def project(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """Nearest point of the ball; differentiable, and part of an unrolled step."""
        shaped = _columns(masked(x, valid))
        return (shaped * (self.radius / self._length(shaped).clamp_min(_TINY)).clamp_max(1.0)).view_as(x)

    def normalise(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """`x` scaled to unit norm; a row that is zero or not finite becomes zero."""
        shaped = _columns(masked(x, valid))
        peak = _peak(shaped, self.rows)
        sound = torch.isfinite(peak) & (peak > 0)
        # Dividing by the peak first keeps the squares of tiny gradients from underflowing; the result does not
        # depend on the divisor, so treating it as a constant leaves the derivative exact.
        scaled = torch.where(sound, shaped / torch.where(sound, peak, 1.0), 0.0)
        return (scaled / self._length(scaled)).view_as(x)

    def steepest(self, gradient: Tensor, valid: Tensor | None = None) -> Tensor:
        """The unit vector along which the payoff climbs fastest."""
        return self.normalise(gradient, valid)

    def sample(self, like: Tensor, valid: Tensor | None = None) -> Tensor:
        """Uniform on the sphere."""
        return self.radius * self.normalise(torch.randn_like(like), valid)

    def interior(self, like: Tensor, valid: Tensor | None = None) -> Tensor:
        """Uniform in the cube that fits the ball: U(-1, 1) * radius / sqrt(valid entries) (FreeLB's start)."""
        shaped = _columns(like)
        ones = masked(torch.ones_like(shaped), valid)
        entries = ones.sum(_axes(shaped, self.rows), keepdim=True).clamp_min(1)
        return (torch.empty_like(shaped).uniform_(-1, 1) * ones * self.radius / entries.sqrt()).view_as(like)


@dataclass(frozen=True)
class Linf:
    """Largest-entry ball: no entry of an example's perturbation exceeds the radius.

    >>> Linf(0.5).project(torch.tensor([[3.0, -0.2]]))
    tensor([[ 0.5000, -0.2000]])

    Args:
        radius: largest absolute entry.
        rows: normalise gradients row by row (last dimension) instead of over the whole example.
    """

    radius: float
    rows: bool = False

    def __post_init__(self) -> None:
        _check_radius("Linf", self.radius)

    def norm(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """(B,) largest absolute entries."""
        x = _columns(masked(x, valid))
        return x.abs().flatten(1).amax(1)

    def project(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        return masked(x, valid).clamp(-self.radius, self.radius)

    def normalise(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """`x` scaled so that its largest entry is 1; a row that is zero or not finite becomes zero."""
        shaped = _columns(masked(x, valid))
        peak = shaped.abs().amax(_axes(shaped, self.rows), keepdim=True)
        sound = torch.isfinite(peak) & (peak > 0)
        return torch.where(sound, shaped / torch.where(sound, peak, 1.0), 0.0).view_as(x)

    def steepest(self, gradient: Tensor, valid: Tensor | None = None) -> Tensor:
        """The sign of the gradient; an example whose gradient is not finite stays put."""
        return self.normalise(gradient, valid).sign()

    def sample(self, like: Tensor, valid: Tensor | None = None) -> Tensor:
        """Uniform in the cube, pushed out to its surface."""
        return self.radius * self.normalise(torch.empty_like(like).uniform_(-1, 1), valid)

    def interior(self, like: Tensor, valid: Tensor | None = None) -> Tensor:
        """Uniform in the cube."""
        return masked(torch.empty_like(like).uniform_(-1, 1) * self.radius, valid)
