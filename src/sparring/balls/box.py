"""The range of valid data: what a clean value plus its perturbation must not leave."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import isnan

import torch
from torch import Tensor

from ..late import ask

Side = float | tuple[float, ...] | None
ROUNDING = 4.0  # a clean value this many units in the last place beyond the box is on its edge


@dataclass(frozen=True)
class Box:
    """All values between `low` and `high`; the second part of a ball (`sp.Linf(8 / 255, box=(0, 1))`).

    >>> lower, upper = Box(0, 1).room(torch.tensor([[0.25, 1.0]]))
    >>> lower, upper
    (tensor([[-0.2500, -1.0000]]), tensor([[0.7500, 0.0000]]))

    Args:
        low: smallest valid value: a number, one number per channel (dimension 1 of (B, C, ...)), or None for no limit.
        high: largest valid value, likewise.
    """

    low: Side = None
    high: Side = None

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            object.__setattr__(self, name, _side(getattr(self, name), self))
        if self.low is not None and self.high is not None:
            lows, highs = _channels(self.low), _channels(self.high)
            if len(lows) != len(highs) and 1 not in (len(lows), len(highs)):
                raise ValueError(
                    f"{self}: {len(lows)} lower and {len(highs)} upper limits; give one per channel on both sides"
                )
            count = max(len(lows), len(highs))
            if any(a > b for a, b in zip(lows * (count // len(lows)), highs * (count // len(highs)), strict=True)):
                raise ValueError(f"{self}: the lower limit is above the upper one; write box=(low, high)")

    def __repr__(self) -> str:
        return f"box=({_show(self.low)}, {_show(self.high)})"

    @torch.no_grad()
    def room(self, around: Tensor, valid: Tensor | None = None) -> tuple[Tensor | None, Tensor | None]:
        """How far each entry may go down and up, `lower <= 0 <= upper`; None on an open side.

        `around + delta` is inside the box, to the last bit and in the precision of `around`, for every delta between them.

        Args:
            around: the clean value (B, ...).
            valid: False on padding, where nothing moves and anything may stand.
        """
        self._check(around, valid)
        lower = upper = None
        # Rounding is monotone: a limit that does not lead out of the box leads no smaller step out of it either.
        if self.low is not None:
            low = _shaped(self.low, around)
            lower = low - around
            lower = torch.where(around + lower < low, torch.nextafter(lower, torch.full_like(lower, torch.inf)), lower)
            lower = lower.clamp(max=0)
        if self.high is not None:
            high = _shaped(self.high, around)
            upper = high - around
            upper = torch.where(
                around + upper > high, torch.nextafter(upper, torch.full_like(upper, -torch.inf)), upper
            )
            upper = upper.clamp(min=0)
        return lower, upper

    def _check(self, around: Tensor, valid: Tensor | None) -> None:
        """Refuse clean values outside: no perturbation of theirs is inside, and cutting them would change the data."""
        edge = ROUNDING * torch.finfo(around.dtype).eps
        out = torch.zeros((), dtype=torch.bool, device=around.device)
        for side, sign in ((self.low, -1), (self.high, 1)):
            if side is not None:
                limit = _shaped(side, around)
                out = out | (sign * (around - limit) > edge * limit.abs().clamp_min(1))

        def refuse() -> None:
            seen = around if valid is None else around[valid.expand_as(around)]
            raise ValueError(
                f"the clean values run from {seen.min().item():.4g} to {seen.max().item():.4g}, outside {self}: give the ball "
                "the range that your data has, or leave box= out"
            )

        ask((out if valid is None else out & valid).any(), refuse)


def as_box(box: "Box | Sequence[object] | None", who: str) -> Box | None:
    """What a user wrote for `box=` as a `Box`, or a sentence about what to write.

    >>> as_box((0, 1), "Linf(0.1)")
    box=(0, 1)
    """
    if box is None or isinstance(box, Box):
        return box
    if not isinstance(box, Sequence) or len(box) != 2:
        raise TypeError(f"{who}: box={box!r} is not a pair; write box=(low, high), for example box=(0, 1)")
    return None if box[0] is None and box[1] is None else Box(*box)  # type: ignore[arg-type]


def _side(side: object, box: Box) -> Side:
    """A limit as a number or a tuple of numbers, so that balls compare, hash and print whatever they were written with."""
    if side is None:
        return None
    values = side.tolist() if isinstance(side, Tensor) else side
    if (
        isinstance(values, Sequence)
        and not isinstance(values, str)
        and all(isinstance(v, int | float) for v in values)
        and values
    ):
        numbers: Side = tuple(values)
    elif isinstance(values, int | float) and not isinstance(values, bool):
        numbers = values
    else:
        raise TypeError(f"a side of a box is a number, one number per channel, or None; got {side!r}")
    assert numbers is not None
    if any(isnan(v) for v in _channels(numbers)):
        raise ValueError(f"a side of a box is {side!r}, which is not a number")
    return numbers


def _channels(side: float | tuple[float, ...]) -> tuple[float, ...]:
    return side if isinstance(side, tuple) else (side,)


def _show(side: Side) -> str:
    if side is None:
        return "None"
    return (
        f"{side:g}"
        if not isinstance(side, tuple)
        else "(" + ", ".join(f"{v:g}" for v in side) + ("," if len(side) == 1 else "") + ")"
    )


def _shaped(side: float | tuple[float, ...], around: Tensor) -> Tensor:
    """The limit as a tensor that broadcasts to `around`: numbers per channel stand in dimension 1."""
    if not isinstance(side, tuple):
        return torch.full((), side, dtype=around.dtype, device=around.device)
    limit = _limits(side, around.dtype, around.device)
    if around.dim() < 2 or around.shape[1] != len(limit):
        raise ValueError(
            f"a box with {len(limit)} channels does not fit values of shape {tuple(around.shape)}: channels are dimension 1"
        )
    return limit.view(-1, *(1,) * (around.dim() - 2))


@lru_cache(maxsize=64)
def _limits(side: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Numbers per channel, brought to a device once."""
    return torch.tensor(side, dtype=dtype, device=device)
