"""The exact gradient by running every mask: the oracle of the estimators, for a handful of units."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .sampling import Evaluate, along_batch


@dataclass(frozen=True)
class Enumerate:
    """The exact gradient `sum_z p(z) l(z) (z - sigmoid(a))` over all masks of a few units.

    >>> import torch
    >>> logits, masks = [torch.zeros(1, 2)], [torch.ones(1, 2)]
    >>> loss = lambda z: (z[0][:, 0] - 3 * z[0][:, 1]) ** 2
    >>> Enumerate().gradient(logits, masks, loss(masks), loss)
    [tensor([[-0.5000,  1.5000]])]

    Args:
        limit: most units per example, over all layers; the number of passes is two to this power.
    """

    limit: int = 12

    def gradient(
        self,
        logits: Sequence[Tensor],
        masks: Sequence[Tensor],
        losses: Tensor,
        evaluate: Evaluate,
        uniforms: Sequence[Tensor] | None = None,
    ) -> list[Tensor]:
        """See `Estimator.gradient`; calls `evaluate` once per mask."""
        sizes = [z[0].numel() for z in masks]
        if sum(sizes) > self.limit:
            raise ValueError(f"{sum(sizes)} units give 2^{sum(sizes)} masks; Enumerate(limit={self.limit}) takes fewer")
        keeps = [torch.sigmoid(a).expand_as(z) for a, z in zip(logits, masks, strict=True)]
        gradients = [torch.zeros_like(keep) for keep in keeps]
        for code in range(2 ** sum(sizes)):
            bits = torch.tensor([(code >> i) & 1 for i in range(sum(sizes))]).split(sizes)
            zs = [b.to(z).reshape(z[0].shape).expand_as(z) for b, z in zip(bits, masks)]
            factors = [torch.where(z > 0.5, keep, 1 - keep).flatten(1).prod(1) for z, keep in zip(zs, keeps)]
            chance, losses = torch.stack(factors).prod(0), evaluate(zs)
            for gradient, z, keep in zip(gradients, zs, keeps):
                gradient += along_batch(chance, z) * along_batch(losses, z) * (z - keep)
        return gradients
