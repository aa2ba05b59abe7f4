"""Laplace priority dropout: every member keeps best the features nearest to its own activation strength."""

import math

import torch
import torch.distributed as dist
from torch import Tensor, nn

from . import counting
from .masks import mask_features

FARTHEST = 2.0**52  # integers up to here fit every dtype used below


class LaplacePriorityDropout(nn.Module):
    """Shares the features out among the members of an ensemble by activation strength, while it trains.

    >>> dropout = LaplacePriorityDropout(gamma=10.0)
    >>> features = [torch.rand(5, 16), torch.rand(5, 16), torch.rand(5, 16)]
    >>> rates = dropout.keep_rates(features)
    >>> tuple(rates[0].shape), bool((torch.cat(rates) <= 0.978).all())
    ((5, 16), True)
    >>> [tuple(masked.shape) for masked in dropout(features)]
    [(5, 16), (5, 16), (5, 16)]

    Units are binned by strength, the bins are ranked by how many units of all members they hold, and the k-th bin
    becomes the priority of member k. A unit is kept with a probability that falls with its distance to that priority,
    times how many of its member's units share its bin. (The paper's text says that crowded bins are kept more; its
    eq. 4 keeps them less. This follows the equation.)

    Units that are not active are outside the statistics: no counted unit shares their bin, so eq. 4 gives z = 0 and
    they get the highest rate. After a ReLU they are zero and nothing changes.

    Args:
        interval: bin width s of eq. 3.
        alpha: weight of the kernel, eq. 6.
        beta: the lowest keep rate, eq. 6.
        scale: lambda of the Laplace kernel, eq. 5.
        gamma: sharpness, eq. 4. The paper never states it; ``calibrate_gamma`` fits it to a mean keep rate.
        threshold: only units above it are active (epsilon of Algorithm 1).
        batchwise: statistics over the batch, and over all ranks when distributed, instead of per example.
        rescale: divide what is kept by its keep rate. The default multiplies by the bare 0/1 mask, as the paper does:
            logits are then larger in evaluation than in training, which hides gradients (see the audit).
        uneven: accept members with different numbers of features.

    Paper: Wu et al., "Deep Ensemble Robustness by Adaptive Sampling in Dropout-Based Simultaneous Training",
    Algorithm 1, eq. 3-6.
    """

    gamma: Tensor

    def __init__(
        self,
        interval: float = 0.1,
        alpha: float = 0.85,
        beta: float = 0.127,
        scale: float = 0.5,
        gamma: float = 10.0,
        threshold: float = 0.0,
        batchwise: bool = False,
        rescale: bool = False,
        uneven: bool = False,
    ) -> None:
        super().__init__()
        for name, value in {"interval": interval, "scale": scale}.items():
            if not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{name}={value} must be a positive number")
        for name, value in {"alpha": alpha, "beta": beta, "gamma": gamma}.items():
            if not (value >= 0 and math.isfinite(value)):
                raise ValueError(f"{name}={value} must not be negative")
        if (highest := alpha / (2 * scale) + beta) > 1:
            needed = f"scale of at least {alpha / (2 * (1 - beta)):.4g}" if beta < 1 else "beta below 1"
            raise ValueError(
                f"alpha={alpha}, beta={beta}, scale={scale} give keep rates up to {highest:.4g}, above 1; use {needed}"
            )
        self.interval, self.alpha, self.beta, self.scale = interval, alpha, beta, scale
        self.threshold, self.batchwise, self.rescale, self.uneven = threshold, batchwise, rescale, uneven
        self.register_buffer("gamma", torch.tensor(float(gamma)))

    def check_sizes(self, sizes: list[int]) -> None:
        """Refuse feature sizes that the statistics could not compare."""
        counting.check_sizes(sizes, self.uneven)

    @torch.no_grad()
    def keep_rates(self, features: list[Tensor]) -> list[Tensor]:
        """Probability of keeping each unit, constants for autograd: K tensors (B, units) like the features."""
        taken, distance = self.bin_distances(features)
        gamma = self.gamma.double().clamp(
            max=1e30
        )  # a half-precision buffer may hold infinity, and 0 * infinity is no rate
        rates = taken.hand_out(self.rates_of(distance, gamma), self.highest)
        return list(rates.split([tensor.shape[1] for tensor in features], 1))

    @torch.no_grad()
    def bin_distances(self, features: list[Tensor]) -> tuple[counting.UnitCounts, Tensor]:
        """Count the units (Algorithm 1, lines 1-5) and measure each bin: eq. 4 without gamma, (R, K, L)."""
        sizes = counting.check_features(features, self.uneven)
        values = torch.cat([tensor.detach() for tensor in features], 1)  # (B, U)
        values = values if values.dtype == torch.float64 else values.float()
        active = values > self.threshold
        first = math.ceil(self.threshold / self.interval) - 1
        # Eq. 3; a division that rounds down must not leave the first bin.
        bins = (values / self.interval).ceil_().nan_to_num_().clamp_(first + 1, FARTHEST).long().sub_(1)
        if values.device.type == "cpu" or (self.batchwise and counting.distributed()):
            active, last = self._last(values, active, first)
            numbers, labels = counting.compact(bins, active, first, last, self.batchwise)
        else:  # asking for the last bin would make the host wait
            numbers, labels = counting.ranked(bins, active & values.isfinite(), self.batchwise)
        taken = counting.count_units(numbers, labels.shape[1], sizes, self.batchwise)
        centres = (labels + 0.5) * self.interval  # eq. 3: ceil(v/s) s - s/2, (R or 1, L)
        chosen = counting.priorities(taken.counts.sum(1), len(sizes))  # (R, K)
        density = taken.counts / taken.counts.sum(-1, keepdim=True).clamp(min=1)
        priority = centres.expand(len(chosen), -1).gather(1, chosen)
        return taken, density * (priority.unsqueeze(-1) - centres.unsqueeze(1)).square()

    def _last(self, values: Tensor, active: Tensor, first: int) -> tuple[Tensor, int]:
        """Which of the active units are finite, and the last bin they can fall in (on any rank)."""
        top = values.amax()
        if not bool(top.isfinite()):
            active = active & values.isfinite()
            top = torch.where(active, values, -torch.inf).amax()
        if self.batchwise and counting.distributed():
            dist.all_reduce(top, op=dist.ReduceOp.MAX)
        last = (top / self.interval).ceil_().clamp_(first + 1, FARTHEST)
        return active, int(last) - 1

    def rates_of(self, distance: Tensor, gamma: float | Tensor) -> Tensor:
        """Keep rates from eq. 4 without gamma: eq. 5-6, of the same shape."""
        kernel = torch.exp(distance * (-gamma / self.scale))
        return kernel.mul_(self.alpha / (2 * self.scale)).add_(self.beta).clamp_(max=1.0)

    @property
    def highest(self) -> float:
        """The keep rate at z = 0."""
        return min(self.alpha / (2 * self.scale) + self.beta, 1.0)

    def forward(self, features: list[Tensor]) -> list[Tensor]:
        if not self.training:
            return features
        return mask_features(features, self.keep_rates(features), self.rescale)

    def extra_repr(self) -> str:
        return (
            f"interval={self.interval}, alpha={self.alpha}, beta={self.beta}, scale={self.scale}, "
            f"gamma={float(self.gamma):.4g}, batchwise={self.batchwise}, rescale={self.rescale}"
        )
