"""Counting the members' units by activation strength: scatter-add, never a loop over examples or units."""

from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

DENSE_BINS = 4096  # above this many bins between the extremes, only the bins that occur are kept
NOWHERE = torch.iinfo(torch.int64).max
BATCH_BINS = 1 << 22


class UnitCounts(NamedTuple):
    """How many active units of each member fall into each bin.

    Attributes:
        counts: (R, K, L), with R = B rows for statistics per example and R = 1 for the batch.
        place: where each unit's bin stands in a table (R, K, L + 1), flattened; the last column is for inactive units.
    """

    counts: Tensor
    place: Tensor

    def hand_out(self, table: Tensor, inactive: float) -> Tensor:
        """Give every unit the entry of its bin, (B, U), from a table like ``counts``."""
        padded = F.pad(table, (0, 1), value=inactive)
        return padded.view(-1).index_select(0, self.place.view(-1)).view(self.place.shape)


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


def count_units(bins: Tensor, levels: int, sizes: list[int], batchwise: bool) -> UnitCounts:
    """Count active units per (example or batch, member, bin); batch counts are summed over the ranks.

    >>> found = count_units(torch.tensor([[0, 2, 2, 3]]), levels=3, sizes=[2, 2], batchwise=False)
    >>> found.counts
    tensor([[[1., 0., 1.],
             [0., 0., 1.]]])

    Args:
        bins: bin of every unit, members side by side, (B, U): 0..levels-1, or ``levels`` for an inactive unit.
        levels: number of bins.
        sizes: units of each member, in order.
        batchwise: one count for the whole batch (and all ranks) instead of one per example.
    """
    width = levels + 1
    owner = torch.cat([torch.full((n,), k * width, device=bins.device) for k, n in enumerate(sizes)])  # (U,)
    if not batchwise:
        owner = owner + torch.arange(bins.shape[0], device=bins.device)[:, None] * (len(sizes) * width)  # (B, U)
    place = bins + owner
    counts = torch.zeros((1 if batchwise else bins.shape[0], len(sizes), width), device=bins.device)
    counts.view(-1).scatter_add_(0, place.view(-1), counts.new_ones(1).expand(place.numel()))
    counts = counts[..., :levels]
    if batchwise and distributed():
        counts = counts.contiguous()
        dist.all_reduce(counts)
    return UnitCounts(counts, place)


def compact(bins: Tensor, active: Tensor, first: int, last: int, batchwise: bool) -> tuple[Tensor, Tensor]:
    """Number the bins from 0, skipping empty ones where the span is vast: (B, U) numbers and the (R, L) bins they mean.

    >>> compact(torch.tensor([[5, 7, 9]]), torch.tensor([[True, True, False]]), first=5, last=7, batchwise=False)
    (tensor([[0, 2, 3]]), tensor([[5, 6, 7]]))

    Args:
        bins: integer bins, (B, U).
        active: the units that count; the others are numbered L.
        first: no active unit lies below this bin.
        last: no active unit lies above it, on any rank.
        batchwise: whether the statistics are those of the batch.
    """
    if last - first < (BATCH_BINS if batchwise else DENSE_BINS):
        labels = torch.arange(first, last + 1, device=bins.device)
        return torch.where(active, bins - first, len(labels)), labels.unsqueeze(0)
    if batchwise:
        raise ValueError(
            f"activations span {last - first + 1} intervals over the batch; use a wider interval, or batchwise=False"
        )
    return ranked(bins, active, batchwise)


def ranked(bins: Tensor, active: Tensor, batchwise: bool) -> tuple[Tensor, Tensor]:
    """Number the bins that occur from 0, the weakest first: results as of `compact`, with at most one bin a unit.

    The shapes follow from those of `bins`, not from what is in it, so that nothing has to be fetched from an accelerator.

    >>> ranked(torch.tensor([[7, 5, 9]]), torch.tensor([[True, True, False]]), batchwise=False)
    (tensor([[1, 0, 3]]), tensor([[5, 7, 0]]))
    """
    rows = torch.where(active, bins, NOWHERE)
    rows = rows.view(1, -1) if batchwise else rows
    ordered, order = rows.sort(1)
    place = F.pad((ordered[:, 1:] != ordered[:, :-1]).cumsum(1), (1, 0))
    numbers = torch.empty_like(rows).scatter_(1, order, place).view_as(bins)
    labels = torch.zeros_like(rows).scatter_(1, place, torch.where(ordered == NOWHERE, 0, ordered))
    return torch.where(active, numbers, rows.shape[1]), labels


def distributed() -> bool:
    """Whether several ranks train together, so that a batch means all of theirs."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def priorities(totals: Tensor, members: int) -> Tensor:
    """Which bin goes to which member: the k-th most populated to member k, (R, K).

    Ties go to the weaker activation; where fewer bins are populated than there are members, the last one is repeated.

    >>> priorities(torch.tensor([[2.0, 5.0, 2.0], [0.0, 4.0, 0.0]]), members=3)
    tensor([[1, 0, 2],
            [1, 1, 1]])
    """
    levels = totals.shape[-1]
    unique = totals.double() * levels - torch.arange(levels, device=totals.device)  # no ties left
    order = unique.topk(min(members, levels)).indices  # (R, min(K, L))
    populated = (totals > 0).sum(-1, keepdim=True)
    rank = torch.arange(members, device=totals.device).expand(len(totals), -1)
    return order.gather(1, torch.minimum(rank, populated - 1).clamp(min=0))
