"""What a visit added to the scores, for layers whose own kernel takes it in its additive mask."""

from torch import Tensor

_ADDED = "_sparring_added"


def shifted(scores: Tensor, shift: Tensor) -> Tensor:
    """`scores + shift`, which remembers its parts."""
    total = scores + shift
    setattr(total, _ADDED, (scores, shift))
    return total


def shift_of(placed: Tensor, scores: Tensor) -> Tensor:
    """What was added to `scores`.

    To take the scores off again would be exact but for rounding, and dear: backward would carry two gradients that cancel
    through the products of all queries and keys.

    >>> import torch
    >>> scores, shift = torch.ones(1, 2, requires_grad=True), torch.full((1, 2), 1e-9)
    >>> shift_of(shifted(scores, shift), scores) is shift, shift_of(scores + shift, scores).requires_grad
    (True, True)
    """
    base, shift = getattr(placed, _ADDED, (None, None))
    if base is scores and shift is not None and shift.shape == scores.shape:
        return shift
    return placed - scores
