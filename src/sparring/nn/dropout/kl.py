"""KL divergences of dropout posteriors from their priors: the regularisers that keep learned rates honest."""

import torch
from torch import Tensor, nn

from .bernoulli import BernoulliDropout
from .concrete import ConcreteDropout
from .gaussian import GaussianDropout

GAUSSIAN_CUBIC = (1.16145124, -1.50204118, 0.58629921)
"""Coefficients of a, a^2, a^3 in the approximation of -KL (Kingma et al. 2015): a least-squares fit over log a in [-3, 0].

Against numerical integration, after the best constant, the error is at most .004 for a >= .1, .007 for a >= .05 and
.019 for a >= .005."""


def bernoulli_entropy(rate: Tensor) -> Tensor:
    """Entropy of Bernoulli variables in nats; exactly 0 at the ends, and so is its gradient.

    >>> bernoulli_entropy(torch.tensor([0.0, 0.5, 1.0]))
    tensor([0.0000, 0.6931, 0.0000])
    """
    inside = (rate > 0) & (
        rate < 1
    )  # a logit of 17 is a rate of 1 in float32: infinite slope there, times 0, would be NaN
    rate = torch.where(inside, rate, 0.5)
    return torch.where(inside, torch.special.entr(rate) + torch.special.entr(1 - rate), 0.0)


def bernoulli_kl(keep: Tensor, norms: Tensor, prior_scale: float, rescale: bool = False) -> Tensor:
    """KL of the two-spike weight posterior of Bernoulli dropout from N(0, s^2), up to a constant, one number a unit.

    `keep/(2 s^2) ||W[:, k]||^2 - H(keep)`. The weights of unit k are present with probability *keep*; the paper's
    formula prints the drop parameter in the same place, which would reward large weights on kept units.

    >>> bernoulli_kl(torch.tensor(0.5), torch.tensor([4.0]), prior_scale=1.0)
    tensor([0.3069])

    Args:
        keep: keep rates, `(K,)` or broadcastable.
        norms: squared norms of the weights consuming each unit, `(K,)`.
        prior_scale: standard deviation s of the prior.
        rescale: the layer divides its masks by keep, so the weights in use are W/keep and the norm is over keep.

    Paper: section 2.2, below eq. 3.
    """
    _check_scale(prior_scale)
    weight = norms / keep if rescale else norms * keep
    return weight / (2 * prior_scale**2) - bernoulli_entropy(keep)


def concrete_kl(drop: Tensor, norms: Tensor, weight_regularizer: float, dropout_regularizer: float) -> Tensor:
    """Concrete dropout's regulariser, one number a unit: `wr ||W||^2/(1-p) + dr (p ln p + (1-p) ln(1-p))`.

    >>> concrete_kl(torch.tensor(0.5), torch.tensor([4.0]), weight_regularizer=0.5, dropout_regularizer=1.0)
    tensor([3.3069])
    """
    return weight_regularizer * norms / (1 - drop) - dropout_regularizer * bernoulli_entropy(drop)


def gaussian_kl(variance: Tensor) -> Tensor:
    """KL of Gaussian dropout's multiplier N(1, a) from the log-uniform prior, up to a constant, by the cubic fit.

    Valid for 0 < a <= 1; falls with a, so on its own it drives the noise up to the cap. The prior is improper.

    >>> gaussian_kl(torch.tensor([1.0, 0.25]))
    tensor([-0.2457,  0.4875])

    Paper: Kingma, Salimans, Welling (2015), eq. 14.
    """
    one, two, three = GAUSSIAN_CUBIC
    variance = variance.clamp_min(torch.finfo(variance.dtype).tiny)  # finite where it has rounded to 0
    return -(0.5 * variance.log() + one * variance + two * variance**2 + three * variance**3)


def dropout_kl(layer: nn.Module, norms: Tensor, prior_scale: float) -> Tensor:
    """The KL of one learned dropout layer, a scalar: the sum over its units.

    >>> layer = BernoulliDropout(2, keep=0.5)
    >>> dropout_kl(layer, torch.tensor([4.0, 4.0]), prior_scale=1.0)
    tensor(0.6137, grad_fn=<SumBackward0>)

    Args:
        layer: `BernoulliDropout`, `ConcreteDropout` or `GaussianDropout`.
        norms: squared norms of the weights that consume each unit, `(K,)`; the number of units is read from it.
        prior_scale: standard deviation of the weights' prior (Gaussian dropout's prior has none).
    """
    if isinstance(layer, BernoulliDropout):
        return bernoulli_kl(layer.keep.expand_as(norms), norms, prior_scale, layer.rescale).sum()
    if isinstance(layer, ConcreteDropout):
        keep = layer.keep.expand_as(
            norms
        )  # concrete_kl at wr = 1/(2 s^2), dr = 1; 1 - p itself would lose small keep rates
        return bernoulli_kl(keep, norms, prior_scale, rescale=True).sum()
    if isinstance(layer, GaussianDropout):
        return gaussian_kl(layer.variance.expand_as(norms)).sum()
    raise ValueError(f"{type(layer).__name__} has no KL here; use BernoulliDropout, ConcreteDropout or GaussianDropout")


def _check_scale(prior_scale: float) -> None:
    if prior_scale <= 0:
        raise ValueError(f"prior_scale={prior_scale} must be positive")
