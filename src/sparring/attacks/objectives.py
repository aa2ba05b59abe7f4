"""What an attack maximises: one number per example, larger when the model is closer to being wrong."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from ..losses import cross_entropy

Objective = Callable[[Tensor, Tensor], Tensor]
Name = Literal["cross_entropy", "margin", "dlr"]


def margin(logits: Tensor, targets: Tensor) -> Tensor:
    """Best wrong logit minus the true one, as in Carlini and Wagner's attack: positive exactly when the model is wrong.

    Unlike cross-entropy its gradient does not vanish when the softmax saturates.

    Example:
        >>> import torch
        >>> margin(torch.tensor([[3.0, 1.0, 0.0]]), torch.tensor([0]))
        tensor([-2.])
    """
    true = logits.gather(1, targets[:, None]).squeeze(1)
    return _others(logits, targets).amax(1) - true


def dlr(logits: Tensor, targets: Tensor) -> Tensor:
    """Difference of logits ratio: the margin divided by the gap between the largest and the third largest logit.

    Neither adding a constant to the logits nor multiplying them changes it (Croce and Hein 2020, eq. 6).

    Example:
        >>> import torch
        >>> dlr(torch.tensor([[3.0, 1.0, 0.0]]), torch.tensor([0]))
        tensor([-0.6667])
    """
    if logits.shape[1] < 3:
        raise ValueError(f"dlr needs at least 3 classes, the model has {logits.shape[1]}; use loss='margin'")
    top = logits.topk(3, dim=1).values
    return margin(logits, targets) / (top[:, 0] - top[:, 2] + 1e-12)


def _others(logits: Tensor, targets: Tensor) -> Tensor:
    hidden = torch.zeros_like(logits, dtype=torch.bool).scatter_(1, targets[:, None], True)
    return logits.masked_fill(hidden, -torch.inf)


OBJECTIVES: dict[str, Objective] = {"cross_entropy": cross_entropy, "margin": margin, "dlr": dlr}


def objective(loss: str | Objective) -> Objective:
    """The loss by name, or the function itself.

    Example:
        >>> objective("margin") is margin
        True
    """
    if callable(loss):
        return loss
    if loss not in OBJECTIVES:
        raise ValueError(f"loss is {loss!r}; use {', '.join(OBJECTIVES)}, or a function (logits, targets) -> (B,)")
    return OBJECTIVES[loss]
