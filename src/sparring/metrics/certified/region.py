"""The set of inputs a certificate speaks about: a ball, cut to the range of valid data if it has a box."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...balls import L2, Ball, Linf, check_ball


@dataclass(frozen=True)
class Region:
    """All `x'` in a ball around each example.

    Example:
        >>> import sparring as sp, torch
        >>> region = Region(torch.tensor([[0.1, 0.5]]), sp.Linf(0.2, box=(0, 1)))
        >>> region.lower, region.upper
        (tensor([[0.0000, 0.3000]]), tensor([[0.3000, 0.7000]]))

    Args:
        centre: (B, ...) the clean inputs.
        ball: `Linf` or `L2`, over whole examples.
        radius: (B,) when each example has its own; None: the ball's.
    """

    centre: Tensor
    ball: Ball
    radius: Tensor | None = None

    def __post_init__(self) -> None:
        check_ball(self.ball, "certify")
        if not isinstance(self.ball, L2 | Linf) or (self.ball.rows and isinstance(self.ball, L2)):
            raise ValueError(
                f"certify(ball={self.ball}): there are certificates for L2 and Linf balls of whole examples"
            )

    def _radius(self) -> Tensor:
        radius = self.ball.radius if self.radius is None else self.radius
        return torch.as_tensor(radius, dtype=self.centre.dtype, device=self.centre.device).expand(len(self.centre))

    def _sides(self) -> tuple[Tensor, Tensor]:
        reach = self._radius().reshape(-1, *[1] * (self.centre.dim() - 1)).expand_as(self.centre)
        lower, upper = self.ball.room(self.centre, None, self.centre)
        down = -reach if lower is None else torch.maximum(-reach, lower)
        return self.centre + down, self.centre + (reach if upper is None else torch.minimum(reach, upper))

    @property
    def lower(self) -> Tensor:
        """The smallest value each coordinate can take."""
        return self._sides()[0]

    @property
    def upper(self) -> Tensor:
        """The largest value each coordinate can take."""
        return self._sides()[1]

    def minimum(self, rows: Tensor, example: Tensor) -> Tensor:
        """A lower bound over the region of the linear functions `rows` (R, ...), row i about example `example[i]`.

        It is the least value itself, except for an L2 ball with a box: there it is the better of the bounds of the ball and of
        the box around it, both of which hold.
        """
        flat = rows.flatten(1)
        within = None
        if isinstance(self.ball, Linf) or self.ball.box is not None:
            lower, upper = (side.flatten(1)[example] for side in self._sides())
            within = (flat * (lower + upper) / 2 - flat.abs() * (upper - lower) / 2).sum(1)
            if isinstance(self.ball, Linf):
                return within
        straight = (flat * self.centre.flatten(1)[example]).sum(1) - self._radius()[example] * flat.norm(dim=1)
        return straight if within is None else torch.maximum(straight, within)
