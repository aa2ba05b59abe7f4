"""What a player, an attack or a certificate asks of a ball, and what a ball of one's own must say."""

from dataclasses import is_dataclass, replace
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from .box import Box

TINY = 1e-30  # keeps a division by the norm of an all-zero row finite, in value and in gradient
Some = TypeVar("Some", bound="Ball")


@runtime_checkable
class Ball(Protocol):
    """How far a perturbation may go, per example: a norm, a radius, and the range of valid data.

    Players, attacks and metrics are written once and take any ball. Your own one inherits from `Ball` and says three things:
    its `radius`, the `norm` of perturbations, and how to `project` them. The rest has defaults, to be replaced where there is
    something better.

    >>> import sparring as sp
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Weighted(sp.Ball):
    ...     '''Entries count by their weights: sum of (weight * entry)^2 <= radius^2, projected along the ray.'''
    ...     radius: float
    ...     weights: tuple[float, ...]
    ...
    ...     def norm(self, x, valid=None):
    ...         return (sp.balls.masked(x, valid) * torch.tensor(self.weights)).flatten(1).norm(dim=1)
    ...
    ...     def project(self, x, valid=None, *, around=None):
    ...         share = (self.radius / self.norm(x, valid).clamp_min(1e-30)).clamp_max(1)
    ...         return sp.balls.masked(x, valid) * share.view(-1, *(1,) * (x.dim() - 1))
    >>> player = sp.PGD(Weighted(0.5, (1.0, 2.0)), steps=3)
    >>> attack = sp.attacks.PGD(Weighted(0.5, (1.0, 2.0)))

    In all methods `valid` is a boolean mask, broadcastable to the tensor, that is False on padding: padding counts for
    nothing and gets exactly zero. `around` is the clean value that the perturbation is added to; a ball without a `box` does
    not look at it.

    Attributes:
        radius: the largest norm.
        rows: every row (last dimension) has a ball of its own.
        box: the range that `around + perturbation` must not leave; None: any value is valid.
    """

    radius: float
    rows: bool = False
    box: Box | None = None

    def norm(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """(B,) how large each example's perturbation is."""
        ...

    def project(self, x: Tensor, valid: Tensor | None = None, *, around: Tensor | None = None) -> Tensor:
        """A point inside the ball and the box, near `x`, and `x` itself if it is inside.

        Must be differentiable if the ball shall be used in an unrolled ascent (SALT).
        """
        ...

    def normalise(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """`x` at norm 1; an example that is zero or not finite becomes zero."""
        x = masked(x, valid)
        size = self.norm(x).view(-1, *(1,) * (x.dim() - 1))
        sound = torch.isfinite(size) & (size > 0)
        return torch.where(sound, x / torch.where(sound, size, 1.0), 0.0)

    def steepest(self, gradient: Tensor, valid: Tensor | None = None) -> Tensor:
        """The direction of norm 1 along which the payoff climbs fastest; by default that of the gradient itself."""
        return self.normalise(gradient, valid)

    def leap(self, gradient: Tensor, valid: Tensor | None = None, *, around: Tensor | None = None) -> Tensor:
        """The steepest step of full radius (fast gradient), cut to the box."""
        step = self.steepest(gradient, valid)
        step = step if self.radius == 1 else self.radius * step
        return step if self.box is None else self.project(step, valid, around=around)

    def sample(self, like: Tensor, valid: Tensor | None = None, *, around: Tensor | None = None) -> Tensor:
        """A random point on the surface, cut to the box."""
        return self.leap(torch.randn_like(like), valid, around=around)

    def interior(self, like: Tensor, valid: Tensor | None = None, *, around: Tensor | None = None) -> Tensor:
        """A random point inside: where an ascent with `start="uniform"` begins."""
        share = torch.rand(like.shape[:1], dtype=like.dtype, device=like.device) ** (1 / max(1, like[:1].numel()))
        return self.sample(like, valid, around=around) * share.view(-1, *(1,) * (like.dim() - 1))

    def in_box(self, x: Tensor, valid: Tensor | None = None, *, around: Tensor | None = None) -> Tensor:
        """`x` cut to the box alone, whatever the radius: for probes, which are no perturbations but must be valid data."""
        lower, upper = self.room(x, valid, around)
        return x if lower is None and upper is None else torch.clamp(x, lower, upper)

    def room(self, x: Tensor, valid: Tensor | None, around: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """The limits that the box sets to each entry of `x`; None, None without a box."""
        if self.box is None:
            return None, None
        if around is None:
            raise ValueError(f"{self} has a box: pass around=, the clean value that the perturbation is added to")
        lower, upper = self.box.room(around, valid)
        return None if lower is None else lower.to(x.dtype), None if upper is None else upper.to(x.dtype)

    def with_radius(self: Some, radius: float) -> Some:
        """The same ball, larger or smaller."""
        if not is_dataclass(self):
            raise TypeError(f"{type(self).__name__}: make it a dataclass, or write with_radius(radius) for it")
        return replace(self, radius=radius)


def check_ball(ball: object, who: str) -> None:
    """Refuse what is no ball, with the object to write instead.

    >>> check_ball(0.5, "PGD")
    Traceback (most recent call last):
    ...
    TypeError: PGD(ball=0.5): a number does not say which norm; write ball=sp.L2(0.5) or ball=sp.Linf(0.5)
    """
    if isinstance(ball, Ball):
        return
    if isinstance(ball, int | float):
        raise TypeError(
            f"{who}(ball={ball}): a number does not say which norm; write ball=sp.L2({ball}) or ball=sp.Linf({ball})"
        )
    raise TypeError(f"{who}(ball={ball!r}): write ball=sp.L2(radius), ball=sp.Linf(radius), or a subclass of sp.Ball")


def masked(x: Tensor, valid: Tensor | None) -> Tensor:
    """`x` with exact zeros where `valid` is False (also where `x` is not finite there)."""
    return x if valid is None else torch.where(valid, x, torch.zeros((), dtype=x.dtype, device=x.device))


def check_radius(ball: Any) -> None:
    """Refuse a radius that no ball has."""
    name, radius = type(ball).__name__, ball.radius
    if isinstance(radius, bool) or not isinstance(radius, int | float):
        raise TypeError(f"{name}(radius={radius!r}) is not a ball: a radius is a number")
    if not 0 <= radius < float("inf"):
        raise ValueError(f"{name}(radius={radius}) is not a ball: give a finite radius >= 0")


def show(ball: Any) -> str:
    """How a ball prints: its box only if it has one."""
    tail = "" if ball.box is None else f", {ball.box!r}"
    return f"{type(ball).__name__}(radius={ball.radius}, rows={ball.rows}{tail})"


def axes(x: Tensor, rows: bool) -> tuple[int, ...]:
    """The dimensions over which one norm is taken."""
    if rows:
        return (-1,)
    return tuple(range(1, x.dim())) or (-1,)


def columns(x: Tensor) -> Tensor:
    """A one-number-per-example tensor (B,) seen as (B, 1), so that axis 0 always stays the example."""
    return x.unsqueeze(-1) if x.dim() == 1 else x
