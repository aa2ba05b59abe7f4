"""Priority diversified dropout: the predecessor of Laplace priority dropout, with two-valued keep rates."""

import torch
import torch.distributed as dist
from torch import Tensor, nn

from . import counting
from .masks import mask_features


class PriorityDiversifiedDropout(nn.Module):
    """Gives each member one interval of activation strengths to keep, and drops most of the rest.

    >>> dropout = PriorityDiversifiedDropout(intervals=10)
    >>> rates = dropout.keep_rates([torch.rand(5, 16), torch.rand(5, 16)])
    >>> bool(((rates[0] <= 0.1) | (rates[0] == 0.9)).all())
    True

    The span of all members' activations is cut into equal intervals (per example by default); the k-th most populated
    one goes to member k. Its units there are kept with probability alpha, the others with beta (1 - density).

    Args:
        intervals: M, the number of intervals; the authors use 10 for three members and 20 for five.
        alpha: keep rate in the member's own interval.
        beta: largest keep rate elsewhere.
        threshold: only units above it span the range and count. None (the authors' code): all units.
        batchwise: statistics over the batch, and over all ranks when distributed, instead of per example.
        rescale: divide what is kept by its keep rate; the authors' code does not.
        uneven: accept members with different numbers of features.

    Paper: Huang et al., "Adversarial Defence by Diversified Simultaneous Training of Deep Ensembles", AAAI 2021;
    eq. 2 of Wu et al.
    """

    def __init__(
        self,
        intervals: int = 10,
        alpha: float = 0.9,
        beta: float = 0.1,
        threshold: float | None = None,
        batchwise: bool = False,
        rescale: bool = False,
        uneven: bool = False,
    ) -> None:
        super().__init__()
        if intervals < 2:
            raise ValueError(f"intervals={intervals} tells no strengths apart; use at least 2")
        for name, value in {"alpha": alpha, "beta": beta}.items():
            if not 0 <= value <= 1:
                raise ValueError(f"{name}={value} would give keep rates outside [0, 1]; choose 0 <= {name} <= 1")
        self.intervals, self.alpha, self.beta, self.threshold = intervals, alpha, beta, threshold
        self.batchwise, self.rescale, self.uneven = batchwise, rescale, uneven

    def check_sizes(self, sizes: list[int]) -> None:
        """Refuse feature sizes that the statistics could not compare."""
        counting.check_sizes(sizes, self.uneven)

    @torch.no_grad()
    def keep_rates(self, features: list[Tensor]) -> list[Tensor]:
        """Probability of keeping each unit, constants for autograd: K tensors (B, units) like the features."""
        sizes = counting.check_features(features, self.uneven)
        values = torch.cat([tensor.detach() for tensor in features], 1)
        values = values if values.dtype == torch.float64 else values.float()
        active = values.isfinite() if self.threshold is None else (values > self.threshold) & values.isfinite()
        taken = counting.count_units(self._bins(values, active), self.intervals, sizes, self.batchwise)
        chosen = counting.priorities(taken.counts.sum(1), len(sizes))  # (R, K)
        table = self.beta * (1 - taken.counts / taken.counts.sum(-1, keepdim=True).clamp(min=1))  # eq. 2
        table.scatter_(2, chosen.unsqueeze(-1), self.alpha)
        return list(taken.hand_out(table, self.beta).split(sizes, 1))

    def _bins(self, values: Tensor, active: Tensor) -> Tensor:
        """Interval of every unit between the extremes of the active ones, or M for an inactive unit, (B, U)."""
        low = torch.where(active, values, torch.inf).amin(1, keepdim=True)
        high = torch.where(active, values, -torch.inf).amax(1, keepdim=True)
        if self.batchwise:
            ends = torch.stack([-low.amin(), high.amax()])
            if counting.distributed():
                dist.all_reduce(ends, op=dist.ReduceOp.MAX)
            low, high = -ends[0], ends[1]
        width = torch.where(high > low, high - low, 1.0)
        position = torch.where(active, values - low, 0.0) * self.intervals / width
        bins = position.floor_().long().clamp_(0, self.intervals - 1)
        return bins if self.threshold is None else torch.where(active, bins, self.intervals)

    def forward(self, features: list[Tensor]) -> list[Tensor]:
        if not self.training:
            return features
        return mask_features(features, self.keep_rates(features), self.rescale)

    def extra_repr(self) -> str:
        return (
            f"intervals={self.intervals}, alpha={self.alpha}, beta={self.beta}, "
            f"batchwise={self.batchwise}, rescale={self.rescale}"
        )
