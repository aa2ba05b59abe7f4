"""The ball of dropout masks: at most so many entries differ from a base mask."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..late import ask


@dataclass(frozen=True)
class Flips:
    """Masks that differ from the base mask in at most `floor(fraction * entries)` places, per example.

    >>> ball = Flips(0.5)
    >>> base, influence = torch.ones(1, 4), torch.tensor([[-3.0, 1.0, -1.0, -2.0]])
    >>> ball.flip(base, base, influence, ball.budget(torch.tensor([[4]])))
    tensor([[0., 1., 1., 0.]])

    The paper writes three norms for this constraint; only the count of flips fits its "3 %" and its algorithm.

    Args:
        fraction: largest share of flipped entries, in [0, 1].
        rows: a budget for every row (last dimension) instead of one for all entries of an example, as for the mask of a
            weight matrix.

    Paper: Park et al., Adversarial Dropout for Recurrent Neural Networks (2019), eq. 5 and 8.
    """

    fraction: float
    rows: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.fraction <= 1:
            raise ValueError(f"Flips({self.fraction}): a share of the entries lies in [0, 1]")

    @property
    def radius(self) -> float:
        return self.fraction

    def axes(self, mask: Tensor) -> tuple[int, ...]:
        """The dimensions that share one budget."""
        return (-1,) if self.rows or mask.dim() == 1 else tuple(range(1, mask.dim()))

    def count(self, mask: Tensor, base: Tensor) -> Tensor:
        """How many entries differ, kept dimensions: the norm of this ball."""
        return (mask != base).sum(self.axes(mask), keepdim=True)

    def budget(self, entries: Tensor, share: float = 1.0) -> Tensor:
        """`floor(share * fraction * entries)`, guarded against rounding just below an integer."""
        return torch.floor(share * self.fraction * entries + 1e-6).long()

    def schedule(self, entries: Tensor, steps: int, spent: int) -> list[Tensor]:
        """Budgets after each of K looks: `floor(k/K * fraction * entries)`, and a flip to give in every round.

        Args:
            entries: how many entries each budget covers.
            steps: K.
            spent: flips that the start mask already uses; they count.

        The last round takes the rest. Where `floor` would leave an early round nothing beyond the start (H = 100, 3 %,
        K = 2 gives 1, which the start flip has used), that round may still flip one unit. Where there is no entry at all (an
        example of nothing but padding) there is nothing to flip, and nothing to complain about.
        """
        total = self.budget(entries)

        def refuse() -> None:
            size = int(entries[entries > 0].min())
            least = math.ceil((spent + steps) / size * 1000 - 1e-9) / 1000
            fix = f"use at least {least:g}" if least <= 1 else f"{size} entries are too few for {steps} steps"
            after = " after the random start flip" if spent else ""
            each = "no flip" if steps == 1 else f"less than one flip in each of {steps} steps"
            raise ValueError(f"Flips({self.fraction:g}) leaves {each}{after} at H={size}; {fix}")

        ask(((total < spent + steps) & (entries > 0)).any(), refuse)
        return [
            torch.maximum(self.budget(entries, k / steps), torch.full_like(total, spent + k)) for k in range(1, steps)
        ] + [total]

    def flip(
        self, mask: Tensor, base: Tensor, influence: Tensor, budget: Tensor, valid: Tensor | None = None
    ) -> Tensor:
        """Flip the entries with the largest gain `(1 - 2m) * influence` (eq. 8), within the budget.

        Never an entry whose gain is not positive. An entry that is flipped already and gains by going back does so, which
        frees its place. The budget is one of this ball (`budget`, `schedule`): what exceeds its fraction is not spent.
        """
        gain = self.gain(mask, influence, valid)
        changed, good = mask != base, gain > 0
        room = budget - (changed & ~good).sum(self.axes(mask), keepdim=True)
        largest = self._largest(torch.where(good & ~changed, gain, -math.inf), room, self._most(mask))
        return torch.where(good & (changed | largest), 1 - mask, mask)

    def flip_as_published(
        self, mask: Tensor, base: Tensor, influence: Tensor, budget: Tensor, valid: Tensor | None = None
    ) -> Tensor:
        """Algorithm 1 to the letter: descending gains until the count exceeds the budget, whatever their sign.

        It ends one flip beyond the budget, and flips entries that lower the divergence when too few raise it.
        """
        gain = self.gain(mask, influence, valid)
        order = self._flat(gain).argsort(dim=-1, descending=True, stable=True)
        toll = 1 - 2 * (self._flat(mask) != self._flat(base)).long()  # +1 leaves the base, -1 comes back to it
        toll = toll.gather(-1, order)
        before = self._flat(self.count(mask, base)) + toll.cumsum(-1) - toll
        going = (before > self._flat(budget)).cumsum(-1) == 0
        chosen = torch.zeros_like(going).scatter(-1, order, going).view_as(mask)
        return torch.where(chosen if valid is None else chosen & valid, 1 - mask, mask)

    def gain(self, mask: Tensor, influence: Tensor, valid: Tensor | None = None) -> Tensor:
        """First-order change of the divergence by flipping each entry; -inf on padding."""
        gain = (1 - 2 * mask) * torch.nan_to_num(influence, 0.0, 0.0, 0.0)
        return gain if valid is None else torch.where(valid, gain, -math.inf)

    def sample(self, base: Tensor, flips: Tensor | int, valid: Tensor | None = None) -> Tensor:
        """The base mask with `flips` entries flipped at random, per budget: the control of equal size."""
        noise = torch.rand_like(base)
        noise = noise if valid is None else torch.where(valid, noise, -math.inf)
        entries = self._flat(noise).shape[-1]
        most = min(flips, entries) if isinstance(flips, int) else entries
        chosen = self._largest(noise, flips, most)
        return torch.where(chosen if valid is None else chosen & valid, 1 - base, base)

    def entries(self, mask: Tensor, valid: Tensor | None = None) -> Tensor:
        """How many entries each budget covers, kept dimensions."""
        ones = torch.ones_like(mask, dtype=torch.bool)
        return (ones if valid is None else ones & valid).sum(self.axes(mask), keepdim=True)

    def _flat(self, x: Tensor) -> Tensor:
        """Entries of one budget in the last dimension."""
        return x if self.rows or x.dim() == 1 else x.flatten(1)

    def _most(self, mask: Tensor) -> int:
        """No budget of this ball is larger, known without asking the device; one to spare for a product rounded up."""
        entries = self._flat(mask).shape[-1]
        return min(entries, math.floor(self.fraction * entries * (1 + 1e-6) + 1e-6) + 1)

    def _largest(self, score: Tensor, count: Tensor | int, most: int) -> Tensor:
        """True at the `count` largest scores of each budget, at most `most`: all need not be put in order for that."""
        flat = self._flat(score)
        limit = self._flat(count) if isinstance(count, Tensor) and count.dim() else count
        within = (torch.arange(most, device=flat.device) < limit).expand(*flat.shape[:-1], most)
        order = flat.topk(most, dim=-1).indices
        return torch.zeros_like(flat, dtype=torch.bool).scatter(-1, order, within).view_as(score)
