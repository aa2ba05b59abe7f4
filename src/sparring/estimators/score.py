"""Score-function estimators: REINFORCE and the leave-one-out baseline."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .sampling import Evaluate, along_batch, sample


@dataclass(frozen=True)
class Reinforce:
    """The plain score function `(l - b)(z - sigmoid(a))`: unbiased, no extra pass, high variance.

    >>> import torch
    >>> logits, masks = [torch.zeros(1, 2)], [torch.tensor([[1.0, 0.0]])]
    >>> Reinforce().gradient(logits, masks, torch.tensor([2.0]), evaluate=None)
    [tensor([[ 1., -1.]])]

    Args:
        baseline: a constant b, or "batch" for the mean loss of the *other* examples of the batch, which keeps the
            estimator unbiased as long as examples do not interact.

    Paper: Williams (1992).
    """

    baseline: float | str = 0.0

    def __post_init__(self) -> None:
        if isinstance(self.baseline, str) and self.baseline != "batch":
            raise ValueError(f"baseline={self.baseline!r} is unknown; give a number or 'batch'")

    def gradient(
        self,
        logits: Sequence[Tensor],
        masks: Sequence[Tensor],
        losses: Tensor,
        evaluate: Evaluate | None = None,
        uniforms: Sequence[Tensor] | None = None,
    ) -> list[Tensor]:
        """See `Estimator.gradient`; never calls `evaluate`."""
        if isinstance(self.baseline, str):
            finite = losses.isfinite()  # the loss of an example that is left out is no baseline for the others
            known = torch.where(finite, losses, 0.0)
            centred = losses - (known.sum() - known) / (finite.sum() - finite.long()).clamp(min=1)
        else:
            centred = losses - self.baseline
        return [along_batch(centred, z) * (z - torch.sigmoid(a)) for a, z in zip(logits, masks, strict=True)]


@dataclass(frozen=True)
class LeaveOneOut:
    """REINFORCE over several samples, each with the others' mean loss as its baseline: unbiased, `samples - 1` passes.

    >>> import torch
    >>> _ = torch.manual_seed(0)
    >>> logits, masks = [torch.zeros(1, 2)], [torch.bernoulli(torch.full((40000, 2), 0.5))]
    >>> loss = lambda z: (z[0][:, 0] - 3 * z[0][:, 1]) ** 2
    >>> gradient = LeaveOneOut().gradient(logits, masks, loss(masks), loss)[0].mean(0)
    >>> torch.allclose(gradient, torch.tensor([-0.5, 1.5]), atol=0.05)
    True

    Args:
        samples: masks in all, the training pass's own included; at least 2.

    Paper: Kool, van Hoof, Welling (2019).
    """

    samples: int = 2

    def __post_init__(self) -> None:
        if self.samples < 2:
            raise ValueError(f"samples={self.samples} leaves no other sample for a baseline; use at least 2")

    def gradient(
        self,
        logits: Sequence[Tensor],
        masks: Sequence[Tensor],
        losses: Tensor,
        evaluate: Evaluate,
        uniforms: Sequence[Tensor] | None = None,
    ) -> list[Tensor]:
        """See `Estimator.gradient`; calls `evaluate` `samples - 1` times."""
        draws = [list(masks)] + [sample(logits, masks) for _ in range(self.samples - 1)]
        every = torch.stack([losses] + [evaluate(draw) for draw in draws[1:]])  # (samples, B)
        centred = (every - every.mean(0)) / (self.samples - 1)
        gradients = []
        for layer, a in enumerate(logits):
            keep = torch.sigmoid(a)
            pieces = [along_batch(c, draw[layer]) * (draw[layer] - keep) for c, draw in zip(centred, draws)]
            gradients.append(torch.stack(pieces).sum(0))
        return gradients
