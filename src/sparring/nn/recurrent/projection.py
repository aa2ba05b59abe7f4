"""The input projection of a recurrent layer, shared by the passes of one training step where it cannot have changed."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

FEW = 16  # a projection of fewer inputs costs less than keeping it

_store: ContextVar[dict[Any, Any] | None] = ContextVar("input_projections", default=None)


@contextmanager
def shared_projections(store: dict[Any, Any]) -> Iterator[None]:
    """Inside, a layer that is called again on the same input (same memory, same version) projects it once.

    The passes that keep their graph share its backward too: the gradients of their pre-activations add up before the one product
    that gives the gradient of the weight. Only the first input seen with a weight is kept in `store`, the clean pass's.
    """
    token = _store.set(store)
    try:
        yield
    finally:
        _store.reset(token)


def shared_projection(
    rows: Tensor, source: Tensor, weight: Tensor, bias: Tensor | None, second: Tensor | None
) -> Tensor | None:
    """`rows @ weight.T + bias + second` if it is worth sharing in this step, else None.

    >>> x, w = torch.ones(2, 30), torch.ones(4, 30)
    >>> with shared_projections({}):
    ...     shared_projection(x, x, w, None, None) is shared_projection(x, x, w, None, None)
    True

    Args:
        rows: what is projected (N, I).
        source: the layer's input that the rows were taken from; its memory, version and graph say whether it comes again.
        weight, bias, second: of the projection.
    """
    store = _store.get()
    if store is None or rows.shape[1] < FEW:
        return None
    slot, identity = ("projection", weight.data_ptr()), tuple(map(_identity, (source, weight, bias, second)))
    if slot not in store:
        store[slot] = (
            identity,
            source,
            project(rows, weight, bias, second),
        )  # the source lives on, so its address stays its own
    known, first, projected = store[slot]
    if known != identity:
        return None
    if source.grad_fn is first.grad_fn and source.requires_grad == first.requires_grad:
        return projected
    return None if source.requires_grad else projected.detach()  # a pass cut off from what came before


def total(bias: Tensor | None, second: Tensor | None) -> Tensor | None:
    """The sum of two biases that need not be there."""
    return bias if second is None else second if bias is None else bias + second


def project(x: Tensor, weight: Tensor, bias: Tensor | None, second: Tensor | None) -> Tensor:
    """`x @ weight.T + bias + second`."""
    bias = total(bias, second)
    return x @ weight.t() if bias is None else torch.addmm(bias, x, weight.t())


def _identity(part: Tensor | None) -> tuple[int, ...]:
    return () if part is None else (part.data_ptr(), part._version, *part.shape, *part.stride())
