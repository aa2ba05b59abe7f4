"""ARM and DisARM: two antithetic evaluations, one of them the ordinary training pass."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .sampling import Evaluate, along_batch, uniforms_given


def mirrored(logits: Sequence[Tensor], uniforms: Sequence[Tensor]) -> list[Tensor]:
    """The antithetic masks `z1 = 1[u > sigmoid(-logits)]` of eq. 7."""
    return [torch.gt(u, torch.sigmoid(-a), out=torch.empty_like(u)) for a, u in zip(logits, uniforms, strict=True)]


@dataclass(frozen=True)
class ARM:
    """Augment-REINFORCE-merge, the paper's estimator: unbiased, one extra forward pass for any number of units.

    With `z1 = 1[u > sigmoid(-a)]` and `z2 = 1[u < sigmoid(a)]` the gradient is `(l(z1) - l(z2)) (u - 1/2)`, per example
    and unit. The given masks are z2, so their pass is the one that trains the model. Several layers take two passes
    in total: their logits do not depend on activations.

    >>> import torch
    >>> _ = torch.manual_seed(0)
    >>> logits, masks = [torch.zeros(1, 2)], [torch.bernoulli(torch.full((40000, 2), 0.5))]
    >>> loss = lambda z: (z[0][:, 0] - 3 * z[0][:, 1]) ** 2
    >>> gradient = ARM().gradient(logits, masks, loss(masks), loss)[0].mean(0)
    >>> torch.allclose(gradient, torch.tensor([-0.5, 1.5]), atol=0.05)      # exact: -0.5, 1.5
    True

    Paper: eq. 7 and 8; Yin and Zhou, ARM (2019).
    """

    def combine(self, logits: Tensor, uniforms: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """One layer's gradient from its uniforms and the losses `(B,)` under z1 and z2."""
        return along_batch(first - second, uniforms) * (uniforms - 0.5)

    def gradient(
        self,
        logits: Sequence[Tensor],
        masks: Sequence[Tensor],
        losses: Tensor,
        evaluate: Evaluate,
        uniforms: Sequence[Tensor] | None = None,
    ) -> list[Tensor]:
        """See `Estimator.gradient`; calls `evaluate` once."""
        uniforms = uniforms_given(logits, masks) if uniforms is None else uniforms
        other = evaluate(mirrored(logits, uniforms))
        return [self.combine(a, u, other, losses) for a, u in zip(logits, uniforms, strict=True)]


@dataclass(frozen=True)
class DisARM(ARM):
    """ARM with the uniforms integrated out given the two masks: the same two passes, about half the variance.

    The gradient is `1/2 (l(z1) - l(z2)) 1[z1 != z2] (-1)^z2 sigmoid(|a|)`.

    >>> import torch
    >>> _ = torch.manual_seed(0)
    >>> logits, masks = [torch.zeros(1, 2)], [torch.bernoulli(torch.full((40000, 2), 0.5))]
    >>> loss = lambda z: (z[0][:, 0] - 3 * z[0][:, 1]) ** 2
    >>> gradient = DisARM().gradient(logits, masks, loss(masks), loss)[0].mean(0)
    >>> torch.allclose(gradient, torch.tensor([-0.5, 1.5]), atol=0.05)
    True

    Paper: Dong, Mnih, Tucker, DisARM (2020); equal to the U2G estimator of Yin et al. (2020).
    """

    def combine(self, logits: Tensor, uniforms: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """One layer's gradient from its uniforms and the losses `(B,)` under z1 and z2."""
        (z1,) = mirrored([logits], [uniforms])
        z2 = torch.lt(uniforms, torch.sigmoid(logits), out=torch.empty_like(uniforms))
        sign = z1.sub_(z2)  # 1[z1 != z2] (-1)^z2
        return along_batch(0.5 * (first - second), uniforms) * sign.mul_(torch.sigmoid(logits.abs()))
