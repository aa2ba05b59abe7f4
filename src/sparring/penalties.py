"""Penalties: what is charged for the change a perturbation made, one number per example.

Each takes the clean and the perturbed outputs (classes in the last dimension), works on log-probabilities in at least
float32, and averages over the valid positions of a sequence: (B, C) or (B, T, C) -> (B,).
"""

from collections.abc import Callable
from math import log
from typing import Any, Literal

import torch
from torch import Tensor

Penalty = Callable[..., Tensor]
"""From clean and perturbed outputs, and optionally `valid=` and `targets=`, to one number per example."""

__all__ = [
    "Penalty",
    "full_precision",
    "js",
    "kl",
    "per_example",
    "probability_error",
    "reverse_kl",
    "squared_error",
    "symmetric_kl",
]


_LEAST = {dtype: torch.finfo(dtype).min for dtype in (torch.float32, torch.float64)}


def full_precision(x: Tensor) -> Tensor:
    """Half precision widened to float32; float32 and float64 stay."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def per_example(values: Tensor, valid: Tensor | None = None) -> Tensor:
    """Mean over every dimension but the first, counting valid positions only; an all-padding row gives 0.

    >>> per_example(torch.tensor([[1.0, 3.0], [5.0, 9.0]]), torch.tensor([[True, True], [True, False]]))
    tensor([2., 5.])
    """
    if values.dim() == 1:
        return values
    values = values.flatten(1)
    if valid is None:
        return values.mean(1)
    if valid.shape[0] != values.shape[0] or valid.numel() != values.numel():
        raise ValueError(
            f"valid has shape {tuple(valid.shape)} but there are {tuple(values.shape)} positions to average"
        )
    valid = valid.flatten(1)
    return torch.where(valid, values, 0.0).sum(1) / valid.sum(1).clamp_min(1)


def _log_probabilities(name: str, clean: Tensor, perturbed: Tensor) -> tuple[Tensor, Tensor]:
    if clean.shape != perturbed.shape:
        raise ValueError(
            f"{name}: clean outputs {tuple(clean.shape)} and perturbed {tuple(perturbed.shape)} differ in shape"
        )
    if clean.dim() < 2 or clean.shape[-1] < 2:
        raise ValueError(
            f"{name} compares distributions over at least two classes in the last dimension, got outputs of shape "
            f"{tuple(clean.shape)}; for one output use squared_error, for a single logit z of shape (B, 1) pass "
            "outputs=lambda z: torch.cat([torch.zeros_like(z), z], 1)"
        )
    return _logs(clean), _logs(perturbed)


def _logs(logits: Tensor) -> Tensor:
    """Log-probabilities; a class that the model rules out (logit -inf) stays finite, so that 0 * log 0 is 0."""
    logs = full_precision(logits).log_softmax(-1)  # which refuses what is no real number
    least = _LEAST[logs.dtype]
    return torch.threshold(logs, least, least)  # clamp_min's derivative takes three operations instead of one


def _divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    return torch.kl_div(log_q, log_p, 0, log_target=True).sum(-1)  # p (log p - log q), entry by entry


def kl(clean: Tensor, perturbed: Tensor, valid: Tensor | None = None) -> Tensor:
    """KL(clean || perturbed) between the softmaxes of two sets of logits.

    >>> kl(torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 0.0]]))
    tensor([0.])
    """
    return per_example(_divergence(*_log_probabilities("kl", clean, perturbed)), valid)


def reverse_kl(clean: Tensor, perturbed: Tensor, valid: Tensor | None = None) -> Tensor:
    """KL(perturbed || clean)."""
    log_p, log_q = _log_probabilities("reverse_kl", clean, perturbed)
    return per_example(_divergence(log_q, log_p), valid)


def symmetric_kl(clean: Tensor, perturbed: Tensor, valid: Tensor | None = None) -> Tensor:
    """KL(clean || perturbed) + KL(perturbed || clean) (SMART, R-Drop)."""
    log_p, log_q = _log_probabilities("symmetric_kl", clean, perturbed)
    return per_example(((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(-1), valid)


def js(clean: Tensor, perturbed: Tensor, valid: Tensor | None = None) -> Tensor:
    """Jensen-Shannon divergence: the mean KL of both to their average; at most log 2 (adversarial dropout)."""
    log_p, log_q = _log_probabilities("js", clean, perturbed)
    log_m = torch.logaddexp(log_p, log_q) - log(2.0)
    return per_example(0.5 * (_divergence(log_p, log_m) + _divergence(log_q, log_m)), valid)


def squared_error(
    clean: Tensor, perturbed: Tensor, valid: Tensor | None = None, reduction: Literal["sum", "mean"] = "sum"
) -> Tensor:
    """Squared difference of the raw outputs (regression, language-model logits), summed or averaged over an output vector.

    >>> squared_error(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 4.0]]))
    tensor([4.])
    >>> squared_error(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 4.0]]), reduction="mean")
    tensor([2.])

    As a penalty with the mean: `functools.partial(sp.squared_error, reduction="mean")`. Language models charge that; over 10,000
    words the sum is 10,000 times as strong. The difference of the two outputs is never held as a whole.

    Args:
        clean: outputs (B, C), (B, T, C) or (B,).
        perturbed: outputs of the same shape.
        valid: positions to count.
        reduction: over the last dimension: "sum", the squared Euclidean distance, or "mean".
    """
    if clean.shape != perturbed.shape:
        raise ValueError(f"squared_error: outputs of shape {tuple(clean.shape)} and {tuple(perturbed.shape)} differ")
    if reduction not in ("sum", "mean"):
        raise ValueError(f'squared_error(reduction={reduction!r}): choose "sum" or "mean"')
    if clean.dim() < 2:
        return (full_precision(clean) - full_precision(perturbed)).square()
    distance: Tensor = _SquaredDistance.apply(clean, perturbed)
    return per_example(distance / clean.shape[-1] if reduction == "mean" else distance, valid)


class _SquaredDistance(torch.autograd.Function):
    """`(a - b).square().sum(-1)` in at least float32, a piece at a time; the backward pass makes the gradients and nothing else."""

    PIECE = 1 << 20

    @staticmethod
    def forward(a: Tensor, b: Tensor) -> Tensor:
        rows = max(1, _SquaredDistance.PIECE // max(1, a.shape[-1]))
        pairs = zip(a.reshape(-1, a.shape[-1]).split(rows), b.reshape(-1, b.shape[-1]).split(rows))
        pieces = [(full_precision(x) - full_precision(y)).square_().sum(-1) for x, y in pairs]
        return torch.cat(pieces).view(a.shape[:-1])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, Tensor | None]:
        a, b = ctx.saved_tensors
        by_a = (full_precision(a) - full_precision(b)) * (2 * slopes[0].unsqueeze(-1))
        needs_a, needs_b = ctx.needs_input_grad
        return by_a.to(a.dtype) if needs_a else None, -by_a.to(b.dtype) if needs_b else None


def probability_error(clean: Tensor, perturbed: Tensor, valid: Tensor | None = None) -> Tensor:
    """Squared Euclidean distance of the softmax probabilities."""
    log_p, log_q = _log_probabilities("probability_error", clean, perturbed)
    return per_example((log_p.exp() - log_q.exp()).square().sum(-1), valid)
