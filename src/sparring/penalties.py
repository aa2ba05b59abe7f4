"""Penalties: what is charged for the change a perturbation made, one number per example.

Each takes the clean and the perturbed outputs (classes in the last dimension), works on log-probabilities in at least
float32, and averages over the valid positions of a sequence: (B, C) or (B, T, C) -> (B,).
"""

from collections.abc import Callable
from math import log

import torch
from torch import Tensor

Penalty = Callable[..., Tensor]


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
    logs = full_precision(logits).log_softmax(-1)
    return logs.clamp_min(torch.finfo(logs.dtype).min)


def _divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    return (log_p.exp() * (log_p - log_q)).sum(-1)


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


def squared_error(clean: Tensor, perturbed: Tensor, valid: Tensor | None = None) -> Tensor:
    """Squared Euclidean distance of the raw outputs (regression, language-model logits).

    >>> squared_error(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 4.0]]))
    tensor([4.])
    """
    if clean.shape != perturbed.shape:
        raise ValueError(f"squared_error: outputs of shape {tuple(clean.shape)} and {tuple(perturbed.shape)} differ")
    square = (full_precision(clean) - full_precision(perturbed)).square()
    return per_example(square.sum(-1) if square.dim() > 1 else square, valid)


def probability_error(clean: Tensor, perturbed: Tensor, valid: Tensor | None = None) -> Tensor:
    """Squared Euclidean distance of the softmax probabilities."""
    log_p, log_q = _log_probabilities("probability_error", clean, perturbed)
    return per_example((log_p.exp() - log_q.exp()).square().sum(-1), valid)
