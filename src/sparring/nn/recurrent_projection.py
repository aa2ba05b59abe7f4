"""The input projection of a recurrent layer, shared by the passes of one training step where it cannot have changed."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

_store: ContextVar[dict[Any, Any] | None] = ContextVar("input_projections", default=None)


@contextmanager
def shared_projections(store: dict[Any, Any]) -> Iterator[None]:
    """Inside, `W x + b` of the same tensors (same memory, same version) is computed once and kept in `store`.

    >>> with shared_projections({}):
    ...     x, w = torch.ones(2, 3), torch.ones(4, 3)
    ...     project(x, w, None, None)[0] is project(x, w, None, None)[0]
    True

    Only the first input seen with a weight is kept, the clean pass's: a pass with another input computes its own.
    """
    token = _store.set(store)
    try:
        yield
    finally:
        _store.reset(token)


def project(x: Tensor, weight: Tensor, bias: Tensor | None, second: Tensor | None) -> tuple[Tensor, bool]:
    """`x @ weight.T + bias + second`, and whether the caller may overwrite it (it is nobody else's)."""
    store = _store.get()
    if store is None:
        return _product(x, weight, bias, second), True
    parts = (x, weight, bias, second)
    slot, identity = ("projection", weight.data_ptr()), tuple(map(_identity, parts))
    if slot not in store:
        # The inputs are kept too: as long as they live, an address means the same tensor.
        store[slot] = (identity, _product(*parts), tuple(None if part is None else part.detach() for part in parts))
    known, product, _ = store[slot]
    return (product, False) if known == identity else (_product(*parts), True)


def _identity(part: Tensor | None) -> tuple[int, ...]:
    return () if part is None else (part.data_ptr(), part._version, *part.shape, *part.stride())


def _product(x: Tensor, weight: Tensor, bias: Tensor | None, second: Tensor | None) -> Tensor:
    if second is not None:
        bias = second if bias is None else bias + second
    return x @ weight.t() if bias is None else torch.addmm(bias, x, weight.t())
