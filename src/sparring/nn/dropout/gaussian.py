"""Dropout with Gaussian multipliers of mean one, of fixed or learned variance (variational Gaussian dropout)."""

import math

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from .units import Units


class GaussianDropout(_DropoutNd):
    """Multiply units by N(1, a), a = p/(1-p), with a fixed or learned; nothing to rescale in evaluation.

    >>> import torch
    >>> layer = GaussianDropout(4, p=0.2, learn=True)
    >>> layer.variance
    tensor([0.2500, 0.2500, 0.2500, 0.2500], grad_fn=<ExpBackward0>)
    >>> layer.eval()(torch.ones(1, 4))
    tensor([[1., 1., 1., 1.]])

    Args:
        features: number of units along `dim` (one variance each), or 1 for one variance for the whole layer.
        p: the drop rate whose Bernoulli noise has the same variance; at most 0.5, since a <= 1.
        learn: make log a parameter, capped at a = 1 (beyond it the approximate KL stops being valid).
        dim: axis that counts units; 1 for `(B, K)` and `(B, C, H, W)`, -1 for `(B, T, K)`.
        share: one draw per example and unit (channel-wise for convolutions); False draws every element.

    Paper: Kingma, Salimans, Welling, Variational Dropout and the Local Reparameterization Trick (2015).
    """

    log_variance: Tensor

    def __init__(
        self, features: int = 1, p: float = 0.5, learn: bool = False, *, dim: int = 1, share: bool = True
    ) -> None:
        nn.Module.__init__(self)  # p is a property here, see BernoulliDropout
        if not 0 < p <= 0.5:
            raise ValueError(f"p={p} must lie in (0, 0.5], the variance p/(1-p) is capped at 1")
        self.inplace = False
        self.learn = learn
        self.units = Units(dim, share)
        start = torch.full((features,), math.log(p) - math.log1p(-p))
        if learn:
            self.log_variance = nn.Parameter(start)
        else:
            self.register_buffer("log_variance", start)

    @property
    def variance(self) -> Tensor:
        """The variances a, `(features,)`, at most 1, differentiable when learned."""
        return self._capped.exp()

    @property
    def deviation(self) -> Tensor:
        """The standard deviations, `(features,)`; their gradient is sound even where the variance rounds to 0."""
        return (self._capped / 2).exp()

    @property
    def _capped(self) -> Tensor:
        excess = (self.log_variance - self.log_variance.clamp(max=0.0)).detach()  # the cap must not stop the gradient
        return self.log_variance - excess

    @property
    def keep(self) -> Tensor:
        """The keep rates 1/(1 + a) of Bernoulli noise with the same variance."""
        return 1 / (1 + self.variance)

    @property
    def p(self) -> float:  # type: ignore[override]
        """The mean equivalent drop rate as a float."""
        return 1.0 - float(self.keep.detach().mean())

    def draw(self, input: Tensor) -> Tensor:
        """The multiplier for this input, batch first: fresh noise in training, ones in evaluation."""
        shape = self.units.shape(input)
        if not self.training:
            return torch.ones(shape, device=input.device, dtype=input.dtype)
        deviation = self.units.place(self.deviation, input)
        noise = torch.randn(shape, device=input.device, dtype=deviation.dtype)
        return (1 + deviation * noise).to(input.dtype)

    def forward(self, input: Tensor) -> Tensor:
        return input * self.draw(input) if self.training else input

    def extra_repr(self) -> str:
        return f"features={self.log_variance.numel()}, p={self.p:.3f}, learn={self.learn}"
