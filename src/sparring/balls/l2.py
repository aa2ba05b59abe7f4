"""The Euclidean ball."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .ball import TINY, Ball, axes, check_radius, columns, masked, show
from .box import Box, as_box


@dataclass(frozen=True, repr=False)
class L2(Ball):
    """Euclidean ball around the clean value, one per example (over all its valid positions).

    >>> ball = L2(1.0)
    >>> ball.project(torch.tensor([[3.0, 4.0], [0.3, 0.4]]))
    tensor([[0.6000, 0.8000],
            [0.3000, 0.4000]])
    >>> L2(1.0, box=(0, 1)).project(torch.tensor([[3.0, 4.0]]), around=torch.tensor([[0.5, 0.9]]))
    tensor([[0.5000, 0.1000]])

    Args:
        radius: largest norm of an example's perturbation.
        rows: give every row (last dimension) a ball of its own, for example each attention query.
        box: (low, high), the range of valid data: numbers, one number per channel, None for an open side. With pixels in
            [0, 1] write `box=(0, 1)`.
    """

    radius: float
    rows: bool = False
    box: Box | Sequence[object] | None = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        check_radius(self)
        object.__setattr__(self, "box", as_box(self.box, f"L2({self.radius})"))

    __repr__ = show

    def norm(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """(B,) norms; with `rows` the largest row counts."""
        x = columns(masked(x, valid))
        lengths = torch.linalg.vector_norm(x, dim=axes(x, self.rows))
        return lengths.flatten(1).amax(1) if lengths.dim() > 1 else lengths

    def project(self, x: Tensor, valid: Tensor | None = None, *, around: Tensor | None = None) -> Tensor:
        """Nearest point of the ball and the box; differentiable, and part of an unrolled step."""
        shaped = columns(masked(x, valid))
        lower, upper = self.room(x, valid, around)
        if lower is None and upper is None:
            if self.radius == 0:
                return torch.zeros_like(x)
            excess = torch.linalg.vector_norm(shaped, dim=axes(shaped, self.rows), keepdim=True) / self.radius
            return (shaped / torch.threshold(excess, 1.0, 1.0)).view_as(x)  # what is inside is divided by exactly 1
        flat = shaped.reshape(-1, shaped.shape[-1]) if self.rows else shaped.flatten(1)
        limits = [None if side is None else side.expand_as(x).reshape(flat.shape) for side in (lower, upper)]
        return _project(flat, self.radius, *limits).view_as(x)

    def normalise(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """`x` scaled to unit norm; a row that is zero or not finite becomes zero."""
        shaped = columns(masked(x, valid))
        over = axes(shaped, self.rows)
        if not (shaped.requires_grad and torch.is_grad_enabled()):  # the same in half as many operations
            unit = shaped / shaped.abs().amax(over, keepdim=True)
            unit.div_(torch.linalg.vector_norm(unit, dim=over, keepdim=True)).nan_to_num_(0.0, 0.0, 0.0)
            return unit if shaped is x else unit.view(x.shape)
        peak = shaped.detach().abs().amax(over, keepdim=True)
        hopeless = (peak / peak).isnan()  # zero, infinite or NaN
        # Dividing by the peak first keeps the squares of tiny gradients from underflowing; the result does not
        # depend on the divisor, so treating it as a constant leaves the derivative exact.
        scaled = shaped.masked_fill(hopeless, 0.0) / peak.masked_fill_(hopeless, 1.0)
        length = torch.linalg.vector_norm(scaled, dim=over, keepdim=True)
        return (scaled / torch.threshold(length, TINY, TINY)).view_as(x)

    def sample(self, like: Tensor, valid: Tensor | None = None, *, around: Tensor | None = None) -> Tensor:
        """Uniform on the surface, cut to the box."""
        shaped = columns(masked(torch.randn_like(like), valid))
        excess = torch.linalg.vector_norm(shaped, dim=axes(shaped, self.rows), keepdim=True).div_(self.radius)
        point = shaped.div_(excess) if like.dim() > 1 else shaped.div_(excess).view(like.shape)
        if valid is not None or excess.numel() == shaped.numel():  # all padding, or a single number that is zero
            point.nan_to_num_(0.0, 0.0, 0.0)
        return point if self.box is None else self.project(point, valid, around=around)

    def interior(self, like: Tensor, valid: Tensor | None = None, *, around: Tensor | None = None) -> Tensor:
        """Uniform in the cube that fits the ball, U(-1, 1) * radius / sqrt(valid entries) (FreeLB's start), cut to the box."""
        shaped = columns(like)
        ones = masked(torch.ones_like(shaped), valid)
        entries = ones.sum(axes(shaped, self.rows), keepdim=True).clamp_min(1)
        point = (torch.empty_like(shaped).uniform_(-1, 1) * ones * self.radius / entries.sqrt()).view_as(like)
        return self.in_box(point, valid, around=around)


def _project(x: Tensor, radius: float, lower: Tensor | None, upper: Tensor | None) -> Tensor:
    """The point of `|d| <= radius, lower <= d <= upper` nearest to each row of `x` (N, n), with `lower <= 0 <= upper`.

    By the Karush-Kuhn-Tucker conditions it is `clamp(share * x, lower, upper)` with the largest share in (0, 1] that keeps the
    norm within the radius. Entry i meets its limit b_i at the share b_i / x_i; between two such shares the squared norm is
    `sum of b_i^2 of the entries at their limit + share^2 * sum of x_i^2 of the others`. Sorting the entries by the share
    at which they meet their limit, so that the first few are at theirs, gives the interval that holds the solution, and in it
    the share in closed form. Which entries are at their limit is constant in a neighbourhood of almost every x: the derivative
    of that closed form is the derivative of the projection.
    """
    with torch.no_grad():
        open_side = torch.full_like(x, torch.inf)
        up, down = open_side if upper is None else upper, open_side if lower is None else -lower
        limit = torch.where(x > 0, up, down)  # (N, n) >= 0
        size = x.abs()
        meets = (limit / size).nan_to_num(1.0).clamp_max(1.0)  # the share at which an entry stops growing
        shares, order = meets.sort(dim=-1)
        squares = size.gather(-1, order).square()
        stopped = (shares.square() * squares).cumsum(-1)  # of the entries up to k
        growing = F.pad(squares.flip(-1).cumsum(-1).flip(-1)[..., 1:], (0, 1))  # of the entries after k
        # Where the squared norm at the share of entry k is below the radius, the solution lies beyond, and entry k is at its limit.
        beyond = stopped + shares.square() * growing < radius**2
        last = torch.where(beyond, shares, -1.0).amax(-1, keepdim=True)
        free = meets > last
        used = torch.where(free, 0.0, meets * size).square().sum(-1, keepdim=True)
    rest = torch.where(free, x, 0.0).square().sum(-1, keepdim=True).clamp_min(TINY).sqrt()
    share = (radius**2 - used).clamp_min(0).sqrt() / rest
    # Rounding must not lose what is known: at the share `last` the norm is within the radius.
    share = torch.maximum(share, last).clamp_max(1.0)
    return torch.clamp(x * share, lower, upper)
