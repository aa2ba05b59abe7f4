"""The theory of adversarial dropout as code: exact adversaries by enumeration, and the order of three regularisers."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import Any

import torch
from torch import Tensor, nn

from ..passes.one import Pass
from ..passes.step import logits_of
from ..penalties import Penalty, full_precision, js
from ..sites.site import Site


def masks_within(size: int, flips: int, dtype: torch.dtype = torch.float32) -> Iterator[Tensor]:
    """All 0/1 masks with at most `flips` zeros, the mask of ones first.

    >>> len(list(masks_within(6, 2)))
    22
    """
    for count in range(min(flips, size) + 1):
        for dropped in combinations(range(size), count):
            mask = torch.ones(size, dtype=dtype)
            mask[list(dropped)] = 0
            yield mask


@dataclass(frozen=True)
class WorstMasks:
    """The worst masks of a batch.

    Attributes:
        masks: one 0/1 mask per example (B, H).
        divergence: what it reaches (B,).
    """

    masks: Tensor
    divergence: Tensor


def _scaled(mask: Tensor, rescale: bool) -> Tensor:
    return mask / mask.mean().clamp_min(torch.finfo(mask.dtype).tiny) if rescale else mask


@torch.no_grad()
def outputs_under(
    model: nn.Module, inputs: Any, site: Site, mask: Tensor, outputs: Callable[[Any], Tensor] | None = None
) -> Tensor:
    """The model's outputs with one multiplier (H,) for all examples at a mask site that fires once."""
    return (outputs or logits_of)(Pass(model, (site,), {site: mask.unsqueeze(0)}).run(inputs))


@torch.no_grad()
def worst_masks(
    model: nn.Module,
    inputs: Any,
    site: Site,
    size: int,
    flips: int,
    penalty: Penalty = js,
    rescale: bool = True,
    outputs: Callable[[Any], Tensor] | None = None,
    limit: int = 100_000,
) -> WorstMasks:
    """The adversarial dropout mask of eq. 5 by brute force over every mask within the budget; for small H only.

    >>> import sparring as sp
    >>> model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Dropout(0.5), nn.Linear(6, 3)).eval()
    >>> found = worst_masks(model, torch.randn(5, 4), sp.Mask(keep=1.0), size=6, flips=2)
    >>> bool(((1 - found.masks).sum(1) <= 2).all())
    True

    Args:
        model: deterministic (eval mode).
        site: a mask site that fires once, with values (B, H).
        size: H.
        flips: largest number of dropped units.
        penalty: the divergence to the full network.
        rescale: divide a mask by its share of active units, as `GreedyFlip` does.
        limit: refuse to enumerate more masks than this.
    """
    count = sum(comb(size, k) for k in range(flips + 1))
    if count > limit:
        raise ValueError(
            f"{count} masks of {size} units with up to {flips} flips; the limit is {limit}: use fewer units"
        )
    full, best, worst = None, None, None
    for mask in masks_within(size, flips):
        found = outputs_under(model, inputs, site, _scaled(mask, rescale), outputs)
        full = found if full is None else full
        divergence = penalty(full, found)
        if worst is None or best is None:
            worst, best = divergence, mask.expand(len(found), size).clone()
            continue
        better = divergence > worst
        worst = torch.where(better, divergence, worst)
        best[better] = mask
    assert best is not None
    assert worst is not None
    return WorstMasks(best, worst)


@dataclass(frozen=True)
class Regularisers:
    """Fraternal dropout, expectation-linear dropout and adversarial dropout for the same masks, per example."""

    fraternal: Tensor
    expectation_linear: Tensor
    adversarial: Tensor

    @property
    def ordered(self) -> bool:
        """Proposition 1: FD / 4 <= EL <= AdD, up to rounding."""
        slack = 1e-12 + 1e-9 * self.adversarial
        below = self.fraternal / 4 <= self.expectation_linear + slack
        return bool((below & (self.expectation_linear <= self.adversarial + slack)).all())


@torch.no_grad()
def regularisers(
    model: nn.Module,
    inputs: Any,
    site: Site,
    size: int,
    flips: int,
    keep: float,
    rescale: bool = True,
    outputs: Callable[[Any], Tensor] | None = None,
) -> Regularisers:
    """Eq. 2, 3 and 4 exactly, by enumeration, with squared L2 distance of the probabilities (Proposition 1).

    Masks are Bernoulli(keep) conditioned on at most `flips` dropped units; the base network keeps all units. The order needs
    the exact worst mask: a greedy search guarantees nothing.
    """
    rows, likelihood = [], []
    for mask in masks_within(size, flips):
        logits = outputs_under(model, inputs, site, _scaled(mask, rescale), outputs)
        rows.append(full_precision(logits).double().softmax(-1))
        zeros = int((mask == 0).sum())
        likelihood.append(keep ** (size - zeros) * (1 - keep) ** zeros)
    p = torch.stack(rows)  # (S, B, M)
    weight = torch.tensor(likelihood, dtype=torch.float64)
    weight = (weight / weight.sum()).view(-1, 1)
    distance = (p - p[:1]).square().sum(-1)  # to the full network, (S, B)
    mean = (weight.unsqueeze(-1) * p).sum(0)
    fraternal = 2 * (weight * (p - mean).square().sum(-1)).sum(0)  # E ||p1 - p2||^2
    return Regularisers(fraternal, (weight * distance).sum(0), distance.amax(0))
