"""What the estimators share: their protocol, uniforms conditioned on a mask, and the surrogate loss."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

Evaluate = Callable[[list[Tensor]], Tensor]
"""Masks of every layer, batch first, to per-example losses `(B,)`; runs without a graph."""


class Estimator(Protocol):
    """Anything that turns one sample of the masks and its losses into gradients for the logits."""

    def gradient(
        self,
        logits: Sequence[Tensor],
        masks: Sequence[Tensor],
        losses: Tensor,
        evaluate: Evaluate,
        uniforms: Sequence[Tensor] | None = None,
    ) -> list[Tensor]:
        """Gradients of each example's expected loss with respect to each of its units' logits.

        Args:
            logits: one tensor a layer, broadcastable to that layer's mask.
            masks: a sample of the masks, zeros and ones, batch first.
            losses: the per-example losses `(B,)` under that sample.
            evaluate: losses under other masks.
            uniforms: the u that made the masks by `z = 1[u < sigmoid(logits)]`, where they are known; an estimator that
                needs them draws them given the masks otherwise.

        Returns:
            One tensor a layer, shaped as its mask. Units that share a logit are to be summed, examples averaged.
        """
        ...


def along_batch(values: Tensor, like: Tensor) -> Tensor:
    """Shape `(B,)` values so that they multiply a batch-first mask; non-finite ones become zero."""
    if values.dim() != 1 or values.shape[0] != like.shape[0]:
        raise ValueError(
            f"losses of shape {tuple(values.shape)} are not per example for masks of {like.shape[0]} examples; "
            "return one loss per example, without a reduction"
        )
    finite = torch.where(values.isfinite(), values, torch.zeros_like(values))
    return finite.to(like.dtype).reshape([-1] + [1] * (like.dim() - 1))


def sample(logits: Sequence[Tensor], masks: Sequence[Tensor]) -> list[Tensor]:
    """Fresh independent masks, shaped as the given ones."""
    return [(torch.rand_like(z) < torch.sigmoid(a)).to(z.dtype) for a, z in zip(logits, masks, strict=True)]


def uniforms_given(logits: Sequence[Tensor], masks: Sequence[Tensor]) -> list[Tensor]:
    """Uniforms u distributed as if the masks had been made by `z = 1[u < sigmoid(logits)]`.

    A clean pass that has drawn its masks already needs not keep its uniforms: u given z = 1 is uniform below the keep
    rate and u given z = 0 uniform above it, so the pair (u, z) has the law that eq. 7 asks for.

    >>> _ = torch.manual_seed(0)
    >>> logits, masks = [torch.zeros(1, 2)], [torch.tensor([[1.0, 0.0]])]
    >>> (uniforms_given(logits, masks)[0] < 0.5).tolist()
    [[True, False]]
    """
    uniforms = []
    for a, z in zip(logits, masks, strict=True):
        keep = torch.sigmoid(a)
        v = torch.rand_like(z)
        uniforms.append(torch.where(z > 0.5, v * keep, keep + v * (1 - keep)))
    return uniforms


def surrogate(logits: Sequence[Tensor], gradients: Sequence[Tensor]) -> Tensor:
    """A loss of value zero whose backward pass gives the logits the estimated gradients, averaged over the examples.

    >>> logits = torch.zeros(2, requires_grad=True)
    >>> charge = surrogate([logits], [torch.tensor([[1.0, 2.0], [3.0, 4.0]])])
    >>> charge.backward()
    >>> charge.item(), logits.grad
    (0.0, tensor([2., 3.]))
    """
    pairs = zip(logits, gradients, strict=True)
    charge = torch.stack([(g.detach().sum_to_size(a.shape) * a).sum() / len(g) for a, g in pairs]).sum()
    return charge - charge.detach()
