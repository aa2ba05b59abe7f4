"""A player that erases whole positions or features at random."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..sites.site import Slot
from .player import Random


@dataclass(frozen=True)
class Cutoff(Random):
    """Erases a share of each sequence at a mask site: whole positions, one stretch of them, or whole features.

    What the layer drew for the clean pass stays elsewhere, and nothing is rescaled. Padding is never counted or erased.

    >>> import sparring as sp
    >>> player = sp.Cutoff(0.75, unit="span")
    >>> player.draw(Slot("mask", torch.ones(1, 8, 3))).sum().item()
    18.0

    Args:
        keep: share that stays, in (0, 1]; of n positions or features, (1 - keep) n are erased, rounded down.
        unit: "token" (positions), "span" (adjacent positions) or "feature" (the same columns at every position).
    """

    keep: float
    unit: Literal["token", "span", "feature"] = "token"

    def __post_init__(self) -> None:
        if not 0 < self.keep <= 1:
            raise ValueError(f"Cutoff(keep={self.keep}): the share that stays lies in (0, 1]")
        if self.unit not in ("token", "span", "feature"):
            raise ValueError(f'Cutoff(unit={self.unit!r}): choose "token", "span" or "feature"')

    @property
    def kinds(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset({"mask"})

    def draw(self, slot: Slot) -> Tensor:
        value = slot.value
        if value.dim() != 3:
            raise ValueError(
                f"Cutoff needs a mask of (examples, positions, features), and the one at {slot.name} has shape "
                f"{tuple(value.shape)}: name the dropout layer behind the embeddings (at=)"
            )
        present = torch.ones_like(value, dtype=torch.bool)
        if self.unit == "feature":
            return torch.where(self._erased(present[:, 0]).unsqueeze(1), 0.0, value)
        if slot.valid is not None:
            present = present & slot.valid
        return torch.where(self._erased(present[:, :, 0]).unsqueeze(2), 0.0, value)

    def _erased(self, present: Tensor) -> Tensor:
        """(B, n) True where something is erased, among what is present (B, n)."""
        length = present.sum(1, keepdim=True)
        count = (length * (1 - self.keep) + 1e-6).floor()  # 10 * (1 - .9) is less than one in floating point
        if self.unit == "span":
            place = present.cumsum(1) - 1
            first = (torch.rand(len(present), 1, device=present.device) * (length - count + 1)).floor()
            return present & (place >= first) & (place < first + count)
        lots = torch.rand(present.shape, device=present.device).masked_fill(~present, 2.0)
        return lots.argsort(1).argsort(1) < count
