"""Asking a loss or a penalty for one number per example."""

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

from torch import Tensor

from ..penalties import per_example


def charge(
    function: Callable[..., Tensor], first: Any, second: Any, examples: int, mask: Tensor | None, targets: Any
) -> Tensor:
    """What a loss or penalty gives per example (B,), over the positions that count.

    >>> import torch
    >>> charge(lambda a, b: (a - b).square(), torch.ones(2, 3), torch.zeros(2, 3), 2, None, None)
    tensor([1., 1.])

    Args:
        function: `function(first, second)`, given `valid` and `targets` where it takes them.
        first: outputs, or the clean ones.
        second: targets, or the perturbed outputs.
        examples: how many there must be.
        mask: False on positions that do not count; None: all do.
        targets: of the batch.
    """
    words = takes(function)
    extra: dict[str, Any] = {}
    if "targets" in words and second is not targets:
        extra["targets"] = targets
    if mask is not None and "valid" in words:
        extra["valid"] = mask
    values = function(first, second, **extra)
    if not isinstance(values, Tensor) or values.dim() == 0:
        raise ValueError(
            f"{_called(function)} returned one number for the batch; an objective needs one per example, shape ({examples},): "
            'pass reduction="none" to a loss of torch'
        )
    if values.shape[0] != examples:
        raise ValueError(f"{_called(function)} returned shape {tuple(values.shape)} for {examples} examples")
    return values if values.dim() == 1 else per_example(values, None if "valid" in extra else mask)


def _called(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", str(function))


def takes(function: Callable[..., Any]) -> frozenset[str]:
    """Which of the optional words `valid`, `targets` and `ignore_index` a loss or penalty takes."""
    try:
        return _signature(function)
    except TypeError:  # not hashable
        return _signature.__wrapped__(function)


@cache
def _signature(function: Callable[..., Any]) -> frozenset[str]:
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:  # a builtin
        return frozenset()
    return frozenset({"valid", "targets", "ignore_index"} & parameters.keys())
