"""The input projection of a recurrent layer, shared by the passes of one training step where it cannot have changed."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

_store: ContextVar[dict[Any, Any] | None] = ContextVar("input_projections", default=None)
_source: ContextVar[Tensor | None] = ContextVar("projected_input", default=None)


@contextmanager
def shared_projections(store: dict[Any, Any]) -> Iterator[None]:
    """Inside, a layer that is called again on the same input (same memory, same version) projects it once.

    Only the first input seen with a weight is kept in `store`, the clean pass's: a pass with another input computes its own.
    """
    token = _store.set(store)
    try:
        yield
    finally:
        _store.reset(token)


@contextmanager
def rows_of(source: Tensor | None) -> Iterator[None]:
    """Inside, the rows that are projected come from `source`; None if they are nothing that could come again."""
    token = _source.set(source)
    try:
        yield
    finally:
        _source.reset(token)


def project(x: Tensor, weight: Tensor, bias: Tensor | None, second: Tensor | None) -> tuple[Tensor, bool]:
    """`x @ weight.T + bias + second`, and whether the caller may overwrite it (it is nobody else's).

    >>> x, w = torch.ones(2, 3), torch.ones(4, 3)
    >>> with shared_projections({}), rows_of(x):
    ...     project(x, w, None, None)[0] is project(x, w, None, None)[0]
    True
    """
    store, source = _store.get(), _source.get()
    if store is None or source is None:
        return _product(x, weight, bias, second), True
    parts = (source, weight, bias, second)
    slot, identity = ("projection", weight.data_ptr()), tuple(map(_identity, parts))
    if slot not in store:
        # What was projected is kept too: as long as it lives, an address means the same tensor.
        kept = tuple(None if part is None else part.detach() for part in parts)
        store[slot] = (identity, _product(x, weight, bias, second), kept)
    known, product, _ = store[slot]
    return (product, False) if known == identity else (_product(x, weight, bias, second), True)


def _identity(part: Tensor | None) -> tuple[int, ...]:
    return () if part is None else (part.data_ptr(), part._version, *part.shape, *part.stride())


def _product(x: Tensor, weight: Tensor, bias: Tensor | None, second: Tensor | None) -> Tensor:
    if second is not None:
        bias = second if bias is None else bias + second
    return x @ weight.t() if bias is None else torch.addmm(bias, x, weight.t())
