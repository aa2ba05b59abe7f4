"""Counting the members' units by activation strength: scatter-add, never a loop over examples or units."""

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

DENSE_BINS = 4096  # above this many bins between the extremes, only the bins that occur are kept
BATCH_BINS = 1 << 22


class Census(NamedTuple):
    """How many active units of each member fall into each bin.

    Attributes:
        counts: (R, K, L), with R = B rows for statistics per example and R = 1 for the batch.
        levels: integer labels of the L bins, ascending.
        place: where each unit's bin stands in ``counts.flatten()``, (B, U); an inactive unit points at some bin.
        active: which units were counted, (B, U).
    """

    counts: Tensor
    levels: Tensor
    place: Tensor
    active: Tensor


def check_features(features: list[Tensor], uneven: bool) -> list[int]:
    """Refuse what cannot be counted across members; return the members' sizes.

    >>> check_features([torch.zeros(2, 4), torch.zeros(2, 4)], uneven=False)
    [4, 4]
    """
    for k, tensor in enumerate(features):
        if tensor.dim() != 2:
            raise ValueError(f"features of member {k} have shape {tuple(tensor.shape)}; expected (B, units)")
        if tensor.shape[0] != features[0].shape[0]:
            raise ValueError(f"members saw {[len(t) for t in features]} examples; every member needs the same batch")
    sizes = [tensor.shape[1] for tensor in features]
    check_sizes(sizes, uneven)
    return sizes


def check_sizes(sizes: list[int], uneven: bool) -> None:
    """Refuse one member, and members of different widths unless asked for.

    >>> check_sizes([8, 4], uneven=False)
    Traceback (most recent call last):
    ...
    ValueError: members have 8, 4 features at their heads: the widest would set every priority; ... uneven=True ...
    """
    if len(sizes) < 2:
        raise ValueError(f"priority dropout shares features out among members; it got {len(sizes)}, needs at least 2")
    if len(set(sizes)) > 1 and not uneven:
        seen = ", ".join(map(str, sizes))
        raise ValueError(
            f"members have {seen} features at their heads: the widest would set every priority; use equal widths, "
            "or pass uneven=True to count all units alike"
        )


def take(bins: Tensor, active: Tensor, sizes: list[int], batchwise: bool, levels: int | None = None) -> Census:
    """Count active units per (example or batch, member, bin); batch counts are summed over the ranks.

    >>> census = take(torch.tensor([[0, 2, 2, 2]]), torch.ones(1, 4, dtype=torch.bool), [2, 2], batchwise=False)
    >>> census.counts
    tensor([[[1., 0., 1.],
             [0., 0., 2.]]])

    Args:
        bins: integer bin of every unit, members side by side, (B, U).
        active: the units that count, (B, U).
        sizes: units of each member, in order.
        batchwise: one census for the whole batch (and all ranks) instead of one per example.
        levels: the bins are 0..levels-1; None: found from the data.
    """
    owner = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes)).to(bins.device)  # (U,)
    labels, local = _label(bins, active, batchwise, levels)
    rows = 0 if batchwise else torch.arange(bins.shape[0], device=bins.device)[:, None] * len(sizes)
    place = (rows + owner) * len(labels) + local  # (B, U)
    shape = (1 if batchwise else bins.shape[0], len(sizes), len(labels))
    counts = torch.zeros(shape, device=bins.device)
    counts.view(-1).scatter_add_(0, place.flatten(), active.flatten().to(counts.dtype))
    if batchwise and distributed():
        dist.all_reduce(counts)
    return Census(counts, labels, place, active)


def distributed() -> bool:
    """Whether several ranks train together, so that a batch means all of theirs."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _label(bins: Tensor, active: Tensor, batchwise: bool, levels: int | None) -> tuple[Tensor, Tensor]:
    """The bins that may occur, ascending, and each unit's position among them (0 for inactive units)."""
    if levels is not None:
        return torch.arange(levels, device=bins.device), bins.clamp(0, levels - 1)
    far = torch.iinfo(bins.dtype).max
    low = torch.where(active, bins, far).amin()
    high = torch.where(active, bins, -far).amax()
    ends = torch.stack([-low, high])
    if batchwise and distributed():
        dist.all_reduce(ends, op=dist.ReduceOp.MAX)
    first, last = -int(ends[0]), int(ends[1])
    if last < first:  # nobody is active
        return torch.zeros(1, dtype=bins.dtype, device=bins.device), torch.zeros_like(bins)
    if last - first < (BATCH_BINS if batchwise else DENSE_BINS):
        labels = torch.arange(first, last + 1, device=bins.device)
        return labels, (bins - first).clamp(0, last - first)
    if batchwise:
        raise ValueError(
            f"activations span {last - first + 1} intervals over the batch; use a wider interval, or batchwise=False"
        )
    return torch.unique(torch.where(active, bins, first), return_inverse=True)


def priorities(totals: Tensor, members: int) -> Tensor:
    """Which bin goes to which member: the k-th most populated to member k, (R, K).

    Ties go to the weaker activation; where fewer bins are populated than there are members, the last one is repeated.

    >>> priorities(torch.tensor([[2.0, 5.0, 2.0], [0.0, 4.0, 0.0]]), members=3)
    tensor([[1, 0, 2],
            [1, 1, 1]])
    """
    order = totals.argsort(dim=-1, descending=True, stable=True)[:, :members]  # (R, min(K, L))
    populated = (totals > 0).sum(-1, keepdim=True)
    rank = torch.arange(members, device=totals.device).expand(len(totals), -1)
    return order.gather(1, torch.minimum(rank, populated - 1).clamp(min=0))
