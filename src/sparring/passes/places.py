"""Which device a batch is on, and whether its model has anything there."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

# What torch says of two devices; some kernels call them types.
_OF_DEVICES = re.compile(r"device|meta tensor|type .* should be the same", re.IGNORECASE)


def elsewhere(error: RuntimeError, model: nn.Module, **given: Any) -> str:
    """One sentence if a step failed because a part of the batch is on a device where the model has nothing; empty otherwise.

    Asked only after torch has complained of devices: a model may well move its inputs itself, and some take lengths on the CPU.

    >>> error = RuntimeError("Expected all tensors to be on the same device")
    >>> elsewhere(error, nn.Linear(2, 2), inputs=torch.zeros(1, 2), targets=torch.zeros(1, device="meta")).partition(" and ")[0]
    'targets are on meta'
    >>> elsewhere(error, nn.Linear(2, 2), inputs=torch.zeros(1, 2), targets=None)
    ''
    """
    if isinstance(error, torch.OutOfMemoryError) or not _OF_DEVICES.search(str(error)):
        return ""
    homes = {tensor.device for tensor in (*model.parameters(), *model.buffers())}
    if not homes:
        return ""
    there = ", ".join(sorted(map(str, homes)))
    for name, part in given.items():
        for tensor in _tensors(part):
            if tensor.device not in homes and name == "inputs":
                return (
                    f"the batch is on {tensor.device} and the objective's model on {there}: move one of them, such as "
                    f'objective.to("{tensor.device}")'
                )
            if tensor.device not in homes:
                return f"{name} are on {tensor.device} and the objective's model on {there}: move them to the model's device"
    return ""


def _tensors(batch: Any) -> Iterator[Tensor]:
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from _tensors(value)
    elif isinstance(batch, tuple | list):
        for value in batch:
            yield from _tensors(value)
