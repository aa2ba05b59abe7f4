"""Dropout whose keep rates are parameters (learnable Bernoulli dropout)."""

import math
import warnings

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from .units import Units


class BernoulliDropout(_DropoutNd):
    """Multiply units by Bernoulli masks with learnable keep rates; a torch dropout to every other tool.

    >>> import torch
    >>> layer = BernoulliDropout(3, keep=0.75).eval()
    >>> layer(torch.ones(1, 3))
    tensor([[0.7500, 0.7500, 0.7500]], grad_fn=<MulBackward0>)
    >>> sorted(layer.train().draw(torch.ones(200, 3)).unique().tolist())
    [0.0, 1.0]

    The masks are discrete, so a plain backward pass leaves the logits without a gradient (with `rescale=True`: with a
    wrong one). `sparring.recipes.learnable_bernoulli` supplies it; training without it warns once.

    Args:
        features: number of units along `dim` (one rate each), or 1 for one rate for the whole layer.
        keep: initial keep rate, strictly between 0 and 1.
        rescale: False is the paper's mode: multiply by z, evaluate with sigmoid(logits). True divides z by the keep
            rate (differentiably) and evaluates with 1.
        dim: axis that counts units; 1 for `(B, K)` and `(B, C, H, W)`, -1 for `(B, T, K)`.
        share: one draw per example and unit (channel-wise for convolutions); False draws every element.
        logits: an existing parameter, shared with other layers; `features` and `keep` are then read from it.

    Attributes:
        logits: the parameter; P(z = 1) = sigmoid(logits).
        guided: set by whoever estimates the logits' gradient; silences the warning.

    Paper: Learnable Bernoulli Dropout for Bayesian Deep Learning, section 2.1, eq. 2.
    """

    def __init__(
        self,
        features: int = 1,
        keep: float = 0.5,
        rescale: bool = False,
        *,
        dim: int = 1,
        share: bool = True,
        logits: nn.Parameter | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        nn.Module.__init__(self)  # not _DropoutNd's: its constant p would go stale, ours is a property
        if features < 1:
            raise ValueError(f"features={features} must be at least 1")
        if not 0 < keep < 1:
            raise ValueError(
                f"keep={keep} must lie strictly between 0 and 1, its logit is the parameter; try 0.99 or 0.01"
            )
        self.inplace = False
        self.rescale = rescale
        self.units = Units(dim, share)
        if logits is None:
            start = math.log(keep) - math.log1p(-keep)
            logits = nn.Parameter(torch.full((features,), start, device=device, dtype=dtype))
        self.logits = logits
        self.guided = False

    @property
    def keep(self) -> Tensor:
        """The keep rates, `(features,)`, differentiable."""
        return torch.sigmoid(self.logits)

    @property
    def p(self) -> float:  # type: ignore[override]
        """The mean drop rate as a float, for tools that read a dropout's `p`."""
        return 1.0 - float(self.keep.detach().mean())

    def uniform(self, input: Tensor) -> Tensor:
        """Fresh uniforms, one for each entry of a mask for this input, in at least float32."""
        dtype = torch.promote_types(self.logits.dtype, torch.float32)
        return torch.rand(self.units.shape(input), device=input.device, dtype=dtype)

    def multiplier(self, uniform: Tensor, input: Tensor) -> Tensor:
        """The multiplier that these uniforms stand for: z = 1[u < keep], over keep if rescaled."""
        keep = torch.sigmoid(self.units.place(self.logits, input).to(uniform.dtype))
        mask = torch.lt(uniform, keep.detach(), out=torch.empty_like(uniform)).to(input.dtype)  # no boolean in between
        if not self.rescale:
            return mask
        return mask / keep.to(input.dtype).clamp_min(
            torch.finfo(input.dtype).tiny
        )  # a rate of 0 drops, it does not divide

    def draw(self, input: Tensor) -> Tensor:
        """The multiplier for this input, batch first: a fresh mask in training, its mean in evaluation."""
        if self.training:
            return self.multiplier(self.uniform(input), input)
        keep = torch.sigmoid(self.units.place(self.logits, input))
        mean = torch.ones_like(keep) if self.rescale else keep
        return mean.to(input.dtype).expand(self.units.shape(input))

    def forward(self, input: Tensor) -> Tensor:
        if self.training and not self.guided and self.logits.requires_grad and torch.is_grad_enabled():
            self.guided = True  # once
            warnings.warn(
                "BernoulliDropout is training without an estimator, so its rates will not learn; take the loss from "
                "sparring.recipes.learnable_bernoulli or freeze them with logits.requires_grad_(False)",
                stacklevel=2,
            )
        return input * self.draw(input)

    def extra_repr(self) -> str:
        return f"features={self.logits.numel()}, keep={1 - self.p:.3f}, rescale={self.rescale}"
