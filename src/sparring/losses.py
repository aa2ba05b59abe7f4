"""Supervised losses, one number per example: `loss(outputs, targets) -> (B,)`."""

import torch
from torch import Tensor
from torch.nn import functional as F

from .penalties import full_precision, per_example

__all__ = ["binary_cross_entropy", "cross_entropy", "member_losses", "squared_loss"]


def cross_entropy(
    outputs: Tensor,
    targets: Tensor,
    valid: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Cross-entropy per example: classes in the last dimension; a sequence (B, T, C) averages over its valid tokens.

    >>> cross_entropy(torch.tensor([[0.0, 0.0]]), torch.tensor([1]))
    tensor([0.6931])

    Args:
        outputs: logits (B, C) or (B, ..., C).
        targets: class indices (B,) or (B, ...), or class probabilities shaped like the outputs.
        valid: positions to count, beside those whose target is `ignore_index`.
        ignore_index: target value that marks a position to leave out.
        label_smoothing: as in `torch.nn.functional.cross_entropy`.
    """
    if outputs.dim() == 2 and targets.dim() == 1 and targets.shape[0] == outputs.shape[0]:
        return F.cross_entropy(
            full_precision(outputs),
            targets,
            reduction="none",
            ignore_index=ignore_index,
            label_smoothing=label_smoothing,
        )
    if outputs.dim() < 2:
        raise ValueError(f"cross_entropy needs logits (B, ..., classes), got shape {tuple(outputs.shape)}")
    soft = targets.is_floating_point()
    if targets.shape != (outputs.shape if soft else outputs.shape[:-1]):
        raise ValueError(
            f"cross_entropy: targets of shape {tuple(targets.shape)} do not fit outputs of shape {tuple(outputs.shape)} "
            "(classes come last: for (B, C, ...) outputs pass outputs=lambda o: o.movedim(1, -1))"
        )
    flat = targets.reshape(-1, targets.shape[-1]) if soft else targets.reshape(-1)
    losses = F.cross_entropy(
        full_precision(outputs).reshape(-1, outputs.shape[-1]),
        flat,
        reduction="none",
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
    ).view(outputs.shape[:-1])
    if losses.dim() == 1:
        return losses
    counted = torch.ones_like(losses, dtype=torch.bool) if soft else targets != ignore_index
    return per_example(losses, counted if valid is None else counted & valid)


def binary_cross_entropy(outputs: Tensor, targets: Tensor, valid: Tensor | None = None) -> Tensor:
    """Cross-entropy of independent yes/no logits, averaged over an example's labels."""
    outputs, targets = _same_shape("binary_cross_entropy", outputs, targets)
    losses = F.binary_cross_entropy_with_logits(
        full_precision(outputs), targets.to(full_precision(outputs).dtype), reduction="none"
    )
    return per_example(losses, valid)


def squared_loss(outputs: Tensor, targets: Tensor, valid: Tensor | None = None) -> Tensor:
    """Squared error per example, averaged over its outputs.

    >>> squared_loss(torch.tensor([[1.0], [3.0]]), torch.tensor([1.0, 1.0]))
    tensor([0., 4.])
    """
    outputs, targets = _same_shape("squared_loss", outputs, targets)
    return per_example((full_precision(outputs) - targets).square(), valid)


def member_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of every member on every example, (B, K), in float32 at least.

    >>> tuple(member_losses(torch.zeros(2, 3, 4), torch.tensor([2, 0])).shape)
    (2, 3)
    """
    chosen = targets[:, None].expand(-1, logits.shape[1])
    return F.cross_entropy(full_precision(logits).flatten(0, 1), chosen.flatten(), reduction="none").view(chosen.shape)


def _same_shape(name: str, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Match (B, 1) outputs with (B,) targets; broadcasting them would silently give a (B, B) loss."""
    if outputs.dim() == targets.dim() + 1 and outputs.shape[-1] == 1:
        outputs = outputs.squeeze(-1)
    if outputs.shape != targets.shape:
        raise ValueError(f"{name}: outputs {tuple(outputs.shape)} and targets {tuple(targets.shape)} differ in shape")
    return outputs, targets
