"""Dropout with learnable rates through a continuous relaxation (Concrete dropout): the biased rival of ARM."""

import math

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from .units import Units


class ConcreteDropout(_DropoutNd):
    """Learn drop rates by ordinary backward passes: masks are soft, so their gradient is biased but cheap.

    >>> import torch
    >>> layer = ConcreteDropout(2, p=0.25)
    >>> layer(torch.ones(5, 2)).sum().backward()
    >>> layer.p_logit.grad.shape
    torch.Size([2])
    >>> layer.eval()(torch.ones(1, 2))
    tensor([[1., 1.]])

    Args:
        features: number of units along `dim` (one rate each), or 1 for one rate for the whole layer (the usual choice).
        p: initial *drop* rate, strictly between 0 and 1.
        temperature: of the relaxation; None takes 0.1 for dense inputs and 2/3 for inputs with further axes.
        dim: axis that counts units; 1 for `(B, K)` and `(B, C, H, W)`, -1 for `(B, T, K)`.
        share: one draw per example and unit (channel-wise for convolutions); False draws every element.

    Paper: Gal, Hron, Kendall, Concrete Dropout (2017): mask = 1 - sigmoid((logit p + logit u) / t), over 1 - p.
    """

    def __init__(
        self, features: int = 1, p: float = 0.1, temperature: float | None = None, *, dim: int = 1, share: bool = True
    ) -> None:
        nn.Module.__init__(self)  # p is a property here, see BernoulliDropout
        if not 0 < p < 1:
            raise ValueError(f"p={p} must lie strictly between 0 and 1, its logit is the parameter")
        if temperature is not None and temperature <= 0:
            raise ValueError(f"temperature={temperature} must be positive")
        self.inplace = False
        self.temperature = temperature
        self.units = Units(dim, share)
        self.p_logit = nn.Parameter(torch.full((features,), math.log(p) - math.log1p(-p)))

    @property
    def keep(self) -> Tensor:
        """The keep rates 1 - p, `(features,)`, differentiable."""
        return torch.sigmoid(-self.p_logit)

    @property
    def p(self) -> float:  # type: ignore[override]
        """The mean drop rate as a float."""
        return 1.0 - float(self.keep.detach().mean())

    def draw(self, input: Tensor) -> Tensor:
        """The multiplier for this input, batch first: a fresh soft mask over 1 - p in training, ones in evaluation."""
        if not self.training:
            return torch.ones(self.units.shape(input), device=input.device, dtype=input.dtype)
        logit = self.units.place(self.p_logit, input)
        uniform = torch.rand(self.units.shape(input), device=input.device, dtype=logit.dtype)
        heat = self.temperature or (0.1 if input.dim() == 2 else 2 / 3)
        tiny = torch.finfo(uniform.dtype).eps
        soft = torch.sigmoid(-(logit + torch.logit(uniform, eps=tiny)) / heat)  # 1 - sigmoid(x) = sigmoid(-x)
        keep = torch.sigmoid(-logit).clamp_min(torch.finfo(logit.dtype).tiny)  # a rate of 0 drops, it does not divide
        return (soft / keep).to(input.dtype)

    def forward(self, input: Tensor) -> Tensor:
        return input * self.draw(input) if self.training else input

    def extra_repr(self) -> str:
        return f"features={self.p_logit.numel()}, p={self.p:.3f}, temperature={self.temperature}"
