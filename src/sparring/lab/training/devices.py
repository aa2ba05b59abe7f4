"""On which device runs train, and how examples get there."""

import os
from dataclasses import replace
from typing import Any

import torch

from ..task import Data, Split

DEVICE = "ACCELERATE_TORCH_DEVICE"  # what accelerate reads; worker processes inherit it


def on_processor() -> bool:
    """Whether runs stay on the CPU: because that was asked for, or because there is nothing else."""
    return os.environ.get(DEVICE) == "cpu" or not torch.accelerator.is_available()


def brought(data: Data, device: torch.device) -> Data:
    """Data whose examples are on the device, also those that a split's `collate` makes; the data itself on the CPU."""
    if device.type == "cpu":
        return data
    return replace(
        data,
        train=brought_split(data.train, device),
        validation=brought_split(data.validation, device),
        test=brought_split(data.test, device) if data.test else None,
        unlabelled=brought_split(data.unlabelled, device) if data.unlabelled else None,
    )


def brought_split(split: Split, device: torch.device) -> Split:
    """One split on the device."""
    from accelerate.utils import send_to_device

    targets, collate = send_to_device(split.targets, device), split.collate
    if collate is None:
        return replace(split, inputs=send_to_device(split.inputs, device), targets=targets)

    def after(inputs: Any, right: Any) -> tuple[Any, Any]:
        return send_to_device(collate(inputs, right), device)

    return replace(split, targets=targets, collate=after)
