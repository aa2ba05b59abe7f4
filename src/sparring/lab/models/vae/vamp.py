"""VampPrior: a mixture of the posteriors of learned pseudo-users (Tomczak and Welling 2018)."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .networks import Encoder, Posterior


class VampPrior(nn.Module):
    """log p(latent) = log of the mean of q(latent | u_c) over C learned pseudo-users, read by the model's own encoder.

    A pseudo-user likes each item to a degree in (0, 1) (a sigmoid keeps it there) and is scaled to length one, like
    real users are.

    >>> prior = VampPrior(items=5, components=3)
    >>> prior(torch.zeros(2, 4), Encoder(5, hidden=6, latent=4)).shape
    torch.Size([2])

    Args:
        items: size of the catalogue.
        components: C, the number of pseudo-users (500 in the paper's experiments).
        start: mean degree of liking at the start, in (0, 1).
    """

    def __init__(self, items: int, components: int = 500, start: float = 0.05) -> None:
        super().__init__()
        if components < 1 or not 0 < start < 1:
            raise ValueError(f"components={components} must be at least 1 and start={start} between 0 and 1")
        centre = math.log(start / (1 - start))
        self.pseudo = nn.Parameter(centre + torch.randn(components, items))

    def forward(self, latent: Tensor, encoder: Encoder) -> Tensor:
        """(B, latent) -> (B,) log densities."""
        posterior = encoder.dense(F.normalize(self.pseudo.sigmoid(), dim=-1))
        return mixture_log_density(latent, posterior)


def mixture_log_density(latent: Tensor, components: Posterior) -> Tensor:
    """Log density of (B, D) points under the equal mixture of (C, D) Gaussians, by matrix products.

    >>> flat = Posterior(torch.zeros(2, 1), torch.zeros(2, 1), torch.empty(2, 0))
    >>> mixture_log_density(torch.zeros(1, 1), flat)
    tensor([-0.9189])
    """
    mean, precision = components.mean, (-components.log_variance).exp()
    # (x - m)^2 p = x^2 p - 2 x m p + m^2 p, so the (B, C, D) differences are never stored
    distance = latent.square() @ precision.T - 2 * latent @ (mean * precision).T + (mean.square() * precision).sum(-1)
    scale = components.log_variance.sum(-1) + mean.shape[-1] * math.log(2 * math.pi)
    return (-0.5 * (distance.clamp(min=0) + scale)).logsumexp(-1) - math.log(len(mean))
