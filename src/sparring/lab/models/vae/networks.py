"""Encoder and decoder of the collaborative-filtering autoencoders: items -> hidden (tanh) -> latent and back."""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .batch import Rows


class Posterior(NamedTuple):
    """A diagonal Gaussian over the latent variables, and the hidden units it was read from; any leading axes."""

    mean: Tensor
    log_variance: Tensor
    hidden: Tensor

    def sample(self, noise: Tensor) -> Tensor:
        """The reparameterised draw `mean + deviation * noise`."""
        return self.mean + (self.log_variance / 2).exp() * noise

    def log_density(self, latent: Tensor) -> Tensor:
        """log q(latent), summed over the last axis."""
        return log_normal(latent, self.mean, self.log_variance)


def log_normal(value: Tensor, mean: Tensor, log_variance: Tensor) -> Tensor:
    """Log density of a diagonal Gaussian, summed over the last axis.

    >>> zero = torch.zeros(1)
    >>> log_normal(zero, zero, zero)
    tensor(-0.9189)
    """
    squared = (value - mean).square() * (-log_variance).exp()
    return -0.5 * (squared + log_variance + math.log(2 * math.pi)).sum(-1)


class SparseLinear(nn.Module):
    """A linear layer for sparse rows: it gathers and adds the weights of the items that are there.

    >>> from scipy.sparse import csr_array
    >>> rows, layer = Rows.of(csr_array([[1.0, 0, 0, 2]])), SparseLinear(4, 3)
    >>> expected = rows.dense() @ layer.weight + layer.bias
    >>> torch.allclose(layer(rows, rows.values), expected)
    True

    Args:
        items: number of inputs.
        features: number of outputs.
    """

    def __init__(self, items: int, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(nn.init.xavier_uniform_(torch.empty(items, features)))
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, rows: Rows, entries: Tensor) -> Tensor:
        """Rows with (n,) or (M, n) entries at their items -> (B, features) or (M, B, features)."""
        versions = 1 if entries.dim() == 1 else len(entries)
        stored = len(rows.items)
        offsets = rows.offsets[:-1] + stored * torch.arange(versions, device=rows.offsets.device)[:, None]
        summed = F.embedding_bag(
            rows.items.repeat(versions),
            self.weight,
            torch.cat([offsets.flatten(), offsets.new_full((1,), versions * stored)]),
            mode="sum",
            per_sample_weights=entries.flatten(),
            include_last_offset=True,
        )
        return summed.unflatten(0, (versions, len(rows)))[slice(None) if entries.dim() > 1 else 0] + self.bias

    def dense(self, inputs: Tensor) -> Tensor:
        """The same map for a dense (B, items) input."""
        return inputs @ self.weight + self.bias


class Encoder(nn.Module):
    """q(latent | items): one tanh layer, then mean and log variance.

    >>> from scipy.sparse import csr_array
    >>> rows = Rows.of(csr_array([[1.0, 0, 1]]))
    >>> Encoder(3, hidden=8, latent=2)(rows, rows.normalised).mean.shape
    torch.Size([1, 2])
    """

    def __init__(self, items: int, hidden: int = 600, latent: int = 200) -> None:
        super().__init__()
        self.input = SparseLinear(items, hidden)
        self.head = nn.Linear(hidden, 2 * latent)
        nn.init.xavier_uniform_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, rows: Rows, entries: Tensor) -> Posterior:
        return self._read(self.input(rows, entries))

    def dense(self, inputs: Tensor) -> Posterior:
        """The posterior of dense inputs, (B, items)."""
        return self._read(self.input.dense(inputs))

    def _read(self, before: Tensor) -> Posterior:
        hidden = before.tanh()
        mean, log_variance = self.head(hidden).chunk(2, -1)
        return Posterior(mean, log_variance, hidden)


def decoder(latent: int = 200, hidden: int = 600, items: int = 1) -> nn.Sequential:
    """p(items | latent): one tanh layer, then a logit per item.

    >>> decoder(2, 8, 5)(torch.zeros(1, 2)).shape
    torch.Size([1, 5])
    """
    layers = nn.Sequential(nn.Linear(latent, hidden), nn.Tanh(), nn.Linear(hidden, items))
    for layer in (layers[0], layers[2]):
        nn.init.xavier_uniform_(layer.weight)  # type: ignore[arg-type]
        nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return layers
