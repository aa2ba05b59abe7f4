"""The pieces of the evidence lower bound (eq. 4): multinomial likelihood, KL to N(0, I), and beta's schedule."""

from dataclasses import dataclass

import torch
from torch import Tensor

from .batch import Rows
from .networks import Posterior, log_normal


def multinomial_log_likelihood(logits: Tensor, rows: Rows) -> Tensor:
    """log p(x | latent) up to the multinomial coefficient: `sum_j x_j log softmax(logits)_j`, one per user.

    Only the stored items are gathered; the normaliser is the one pass over all items. An empty row gives 0.

    >>> from scipy.sparse import csr_array
    >>> multinomial_log_likelihood(torch.zeros(1, 4), Rows.of(csr_array([[1.0, 0, 0, 1]])))
    tensor([-2.7726])
    """
    chosen = rows.sum(rows.values * logits[rows.users, rows.items])
    return chosen - rows.sum(rows.values) * logits.logsumexp(-1)


def gaussian_kl(posterior: Posterior) -> Tensor:
    """KL(q || N(0, I)) in closed form, one per user.

    >>> gaussian_kl(Posterior(torch.tensor([[1.0]]), torch.tensor([[0.0]]), torch.empty(1, 0)))
    tensor([0.5000])
    """
    mean, log_variance = posterior.mean, posterior.log_variance
    return 0.5 * (mean.square() + log_variance.exp() - log_variance - 1).sum(-1)


def standard_log_density(latent: Tensor) -> Tensor:
    """log N(latent; 0, I), summed over the last axis.

    >>> standard_log_density(torch.zeros(1, 2))
    tensor([-1.8379])
    """
    zero = torch.zeros_like(latent)
    return log_normal(latent, zero, zero)


@dataclass(frozen=True)
class Annealing:
    """beta as a function of the update: a straight line from 0 to `cap` over `updates`, then flat.

    >>> beta = Annealing(updates=100, cap=0.5)
    >>> beta(0), beta(50), beta(1000)
    (0.0, 0.25, 0.5)

    Args:
        updates: length of the ramp; 0 starts at `cap`.
        cap: where it ends. The paper anneals to 1 and records the beta with the best validation score.
    """

    updates: int
    cap: float = 1.0

    def __post_init__(self) -> None:
        if self.updates < 0 or self.cap < 0:
            raise ValueError(f"updates={self.updates} and cap={self.cap} must not be negative")

    def __call__(self, update: int) -> float:
        return self.cap * min(1.0, update / self.updates) if self.updates else self.cap
