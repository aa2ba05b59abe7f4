"""Labelled and unlabelled examples in one batch, where their shapes allow it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .masks import ValidMask


@dataclass(frozen=True)
class Joint:
    """Both kinds of example, the labelled ones first."""

    inputs: Any
    valid: ValidMask
    labelled: int


def joined(inputs: Any, more: Any, valid: ValidMask = None, more_valid: ValidMask = None) -> Joint | None:
    """The batches one after the other; None where shapes, types or keys differ.

    >>> joined(torch.zeros(2, 3), torch.ones(4, 3)).inputs.shape
    torch.Size([6, 3])
    """
    both, masks = _cat(inputs, more), _cat(valid, more_valid)
    if both is None or (masks is None and not (valid is None and more_valid is None)):
        return None
    return Joint(both, masks, _rows(inputs))


def _cat(a: Any, b: Any) -> Any:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        fits = a.dim() == b.dim() > 0 and a.shape[1:] == b.shape[1:] and a.dtype == b.dtype and a.device == b.device
        return torch.cat([a, b]) if fits else None
    if isinstance(a, Mapping) and isinstance(b, Mapping) and a.keys() == b.keys():
        parts = {key: _cat(a[key], b[key]) for key in a}
        return None if any(part is None for part in parts.values()) else parts
    if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        items = tuple(_cat(x, y) for x, y in zip(a, b))
        return None if any(item is None for item in items) else items
    return None


def _rows(tree: Any) -> int:
    while not isinstance(tree, Tensor):
        tree = next(iter(tree.values() if isinstance(tree, Mapping) else tree))
    return len(tree)
