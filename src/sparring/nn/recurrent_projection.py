"""The input projection of a recurrent layer, shared by the passes of one training step where it cannot have changed."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import torch
from torch import Tensor

Key = tuple[tuple[int, ...], ...]


@dataclass
class Projections:
    """Projections computed so far, with their inputs kept alive so that an address means the same tensor."""

    known: dict[Key, tuple[Tensor, tuple[Tensor | None, ...]]] = field(default_factory=dict)


_shared: ContextVar[Projections | None] = ContextVar("shared_projections", default=None)


@contextmanager
def shared_projections(projections: Projections) -> Iterator[Projections]:
    """Inside, `W x + b` of the same tensors (same memory, same version) is computed once.

    >>> with shared_projections(Projections()):
    ...     x, w = torch.ones(2, 3), torch.ones(4, 3)
    ...     project(x, w, None)[0] is project(x, w, None)[0]
    True
    """
    token = _shared.set(projections)
    try:
        yield projections
    finally:
        _shared.reset(token)


def project(x: Tensor, weight: Tensor, bias: Tensor | None, second: Tensor | None = None) -> tuple[Tensor, bool]:
    """`x @ weight.T + bias + second`, and whether the caller may overwrite it (it is nobody else's)."""
    shared = _shared.get()
    if shared is None:
        return _product(x, weight, bias, second), True
    parts = (x, weight, bias, second)
    key = tuple(_identity(part) for part in parts)
    if key not in shared.known:
        shared.known[key] = (_product(*parts), tuple(None if p is None else p.detach() for p in parts))
    return shared.known[key][0], False


def _identity(part: Tensor | None) -> tuple[int, ...]:
    return () if part is None else (part.data_ptr(), part._version, *part.shape, *part.stride())


def _product(x: Tensor, weight: Tensor, bias: Tensor | None, second: Tensor | None) -> Tensor:
    if second is not None:
        bias = second if bias is None else bias + second
    return x @ weight.t() if bias is None else torch.addmm(bias, x, weight.t())
