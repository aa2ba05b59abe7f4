"""What the measures of calibration may be given."""

import torch
from torch import Tensor

from ..probabilities import check_probabilities


def two_sided(probabilities: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities as `(N, classes)` in double precision, and the checked class numbers `(N,)` as long."""
    probabilities = probabilities.detach().double()
    if probabilities.dim() == 1:
        probabilities = torch.stack([1 - probabilities, probabilities], 1)
    if probabilities.dim() != 2 or targets.shape != probabilities.shape[:1]:
        raise ValueError(
            f"probabilities {tuple(probabilities.shape)}, targets {tuple(targets.shape)}: must be (N, classes) and (N,)"
        )
    check_probabilities(probabilities)
    return probabilities, class_numbers(targets, probabilities.shape[1])


def class_numbers(targets: Tensor, classes: int) -> Tensor:
    """Targets `(N,)` of any type of whole numbers as long, each the number of a class.

    >>> class_numbers(torch.tensor([True, False]), 2)
    tensor([1, 0])
    >>> class_numbers(torch.tensor([0, 2]), 2)
    Traceback (most recent call last):
    ...
    ValueError: targets hold 2; they must be class numbers from 0 to 1

    Args:
        targets: at least one.
        classes: how many there are.
    """
    wanted = f"they must be class numbers from 0 to {classes - 1}"
    if targets.is_floating_point():
        raise ValueError(f"targets are {targets.dtype}; {wanted}")
    if not len(targets):
        raise ValueError("targets are empty; calibration is measured on at least one example")
    targets = targets.long()
    outside = targets[(targets < 0) | (targets >= classes)]
    if len(outside):
        raise ValueError(f"targets hold {int(outside[0])}; {wanted}")
    return targets
