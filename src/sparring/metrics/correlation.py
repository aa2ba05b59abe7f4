"""Correlations within rows of a padded batch."""

import torch
from torch import Tensor

CELLS = 1 << 18  # pairs of positions compared at a time: they fit a core's own cache


def pearson(x: Tensor, y: Tensor, valid: Tensor | None = None) -> Tensor:
    """Pearson's correlation of each row over its valid entries; NaN where there is none (a constant row, one entry).

    >>> pearson(torch.tensor([[1.0, 2.0, 3.0], [1.0, 2.0, 9.0]]), torch.tensor([[2.0, 4.0, 6.0], [5.0, 4.0, 9.0]]),
    ...         torch.tensor([[True, True, True], [True, True, False]]))
    tensor([ 1., -1.])

    Args:
        x: (B, T).
        y: (B, T).
        valid: False where an entry does not count.
    """
    x, y, kept = _prepared(x, y, valid)
    count = kept.sum(-1, keepdim=True).clamp_min(1)
    dx = (x - (x * kept).sum(-1, keepdim=True) / count) * kept
    dy = (y - (y * kept).sum(-1, keepdim=True) / count) * kept
    dx, dy = (d / d.abs().amax(-1, keepdim=True).clamp_min(1e-300) for d in (dx, dy))
    found = (dx * dy).sum(-1) / (dx.square().sum(-1) * dy.square().sum(-1)).sqrt()
    return _defined(found.clamp(-1, 1), x, y, kept)


def kendall(x: Tensor, y: Tensor, valid: Tensor | None = None) -> Tensor:
    """Kendall's tau-b of each row over its valid entries (ties counted); NaN where there is none.

    >>> kendall(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[1.0, 3.0, 2.0]]))
    tensor([0.3333])

    Args:
        x: (B, T).
        y: (B, T).
        valid: False where an entry does not count.
    """
    x, y, kept = _prepared(x, y, valid)
    size = max(1, CELLS // x.shape[1] ** 2)
    blocks = []
    for a, b in zip(*(t.masked_fill(kept == 0, torch.nan).split(size) for t in (x, y)), strict=True):
        # Every pair appears twice, with either sign, so those that rise in x tell all; nothing is above or below a NaN.
        up, right = (v[:, :, None] > v[:, None, :] for v in (a, b))
        agree, differ, ups, rights = (t.sum((1, 2)).double() for t in (up & right, up & right.mT, up, right))
        blocks.append((agree - differ) / (ups * rights).sqrt())
    found = torch.cat(blocks).masked_fill(((x + y).isnan() & (kept != 0)).any(1), torch.nan)
    return _defined(found.clamp(-1, 1), x, y, kept)


def _prepared(x: Tensor, y: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    if x.dim() != 2 or x.shape != y.shape or (valid is not None and valid.shape != x.shape):
        shapes = ", ".join(str(tuple(t.shape)) for t in (x, y) + (() if valid is None else (valid,)))
        raise ValueError(f"correlations take rows of one shape (B, T), got {shapes}")
    kept = torch.ones_like(x) if valid is None else valid
    if x.shape[1] == 0:  # sentences without a word: one column that does not count
        x, y, kept = (torch.zeros(len(x), 1, device=x.device) for _ in range(3))
    x, y = (v.double().masked_fill(kept == 0, 0.0) for v in (x, y))  # 0 * NaN would be NaN
    return x, y, kept.double()


def _defined(found: Tensor, x: Tensor, y: Tensor, kept: Tensor) -> Tensor:
    """NaN for rows in which one side is constant (up to the last bit), as there is nothing to correlate."""
    constant = torch.zeros(len(x), dtype=torch.bool, device=x.device)
    for v in (x, y):
        low = v.masked_fill(kept == 0, torch.inf).amin(-1)
        high = v.masked_fill(kept == 0, -torch.inf).amax(-1)
        constant |= high <= low
    return found.masked_fill(constant, torch.nan).float()
