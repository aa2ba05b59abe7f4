"""SIVAE: a VAE whose learned input dropout makes the posterior semi-implicit (eq. 5), trained by eq. 6."""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from ....metrics.ranking import CSR
from ....nn.dropout.bernoulli import BernoulliDropout
from .batch import Rows
from .elbo import multinomial_log_likelihood, standard_log_density
from .masks import Learned, at, hard_multiplier, mean_multiplier, soft_multiplier
from .networks import Encoder, Posterior, decoder


class SIVAE(nn.Module):
    """Semi-implicit VAE for implicit feedback; the dropout rates of the items are learned with everything else.

    With Bernoulli dropout the rates' gradient comes from ARM over the V + 1 masks at once: `losses` returns the value
    of the bound, and its backward pass gives the network the gradient at one set of masks and the logits ARM's.

    >>> from scipy.sparse import csr_array
    >>> likes = csr_array([[1.0, 1, 0, 0], [0, 0, 1, 1]])
    >>> model = SIVAE(items=4, dropout=BernoulliDropout(4), extra=3, hidden=8, latent=2)
    >>> model.losses(Rows.of(likes)).mean().backward()
    >>> model.dropout.logits.grad.shape, model.scores(likes).shape
    (torch.Size([4]), torch.Size([2, 4]))

    Args:
        items: size of the catalogue.
        dropout: a `BernoulliDropout`, `ConcreteDropout` or learned `GaussianDropout` with one rate per item, or one.
        extra: V, the masks drawn besides the generating one to estimate log q; 0 is the plain ELBO.
        hidden: width of the encoder's and decoder's tanh layer.
        latent: number of latent variables.
        estimator: of the Bernoulli logits' gradient, "arm" (the paper's) or "disarm" (less variance).

    Paper: Boluki et al. 2020, section 2.3 (eq. 5, 6) and 2.4 (eq. 7, 8).
    """

    def __init__(
        self,
        items: int,
        dropout: Learned,
        extra: int = 1,
        hidden: int = 600,
        latent: int = 200,
        estimator: Literal["arm", "disarm"] = "arm",
    ) -> None:
        super().__init__()
        if extra < 0:
            raise ValueError(f"extra={extra} must be 0 (the plain ELBO) or more masks")
        if estimator not in ("arm", "disarm"):
            raise ValueError(f"estimator={estimator!r} is unknown; use 'arm' or 'disarm'")
        rates = dropout.keep.numel()
        if rates not in (1, items):
            raise ValueError(f"dropout has {rates} rates for items={items}; give it one each, or 1 for all")
        self.encoder = Encoder(items, hidden, latent)
        self.decoder = decoder(latent, hidden, items)
        self.dropout, self.extra, self.latent, self.estimator = dropout, extra, latent, estimator
        if isinstance(dropout, BernoulliDropout):
            dropout.guided = True

    def bound(self, rows: Rows, multipliers: Tensor, noise: Tensor, beta: float = 1.0) -> Tensor:
        """Negative eq. 6 for given masks and noise, (B,): -log p(x | eta) + beta (log q^(eta) - log p(eta)).

        Args:
            rows: the users.
            multipliers: (V + 1, n) at the entries; the first set generates eta.
            noise: (B, latent), standard normal.
            beta: weight of the divergence.
        """
        posterior = self.encoder(rows, multipliers * rows.normalised)  # leading axis V + 1
        latent = Posterior(*(part[0] for part in posterior)).sample(noise)
        log_q = posterior.log_density(latent).logsumexp(0) - math.log(len(multipliers))
        divergence = log_q - standard_log_density(latent)
        return beta * divergence - multinomial_log_likelihood(self.decoder(latent), rows)

    def forward(self, rows: Rows, beta: float = 1.0) -> Tensor:
        return self.losses(rows, beta)

    def losses(
        self, rows: Rows, beta: float = 1.0, noise: Tensor | None = None, uniforms: Tensor | None = None
    ) -> Tensor:
        """Negative eq. 6 per user at fresh masks; back-propagate its mean.

        Args:
            rows: the users.
            beta: weight of the divergence.
            noise: (B, latent) standard normal; None draws it.
            uniforms: (V + 1, n) in (0, 1), the u of eq. 7 at the entries; None draws them. Bernoulli dropout only.
        """
        if noise is None:
            noise = torch.randn_like(rows.values.new_empty(len(rows), self.latent))
        layer = self.dropout
        if not isinstance(layer, BernoulliDropout):
            return self.bound(rows, self.draw(rows, self.extra + 1), noise, beta)
        if uniforms is None:
            uniforms = torch.rand_like(rows.values.expand(self.extra + 1, -1))
        logits = at(layer.logits, rows.items)
        second = (uniforms < logits.detach().sigmoid()).to(rows.values)
        first = (uniforms > (-logits.detach()).sigmoid()).to(rows.values)
        losses = self.bound(rows, hard_multiplier(layer, rows.items, second), noise, beta)
        if not (torch.is_grad_enabled() and layer.logits.requires_grad):
            return losses
        with torch.no_grad():
            gap = self.bound(rows, hard_multiplier(layer, rows.items, first), noise, beta) - losses
            weight = _weight(self.estimator, logits, uniforms, first, second)
        # The masks of absent items cannot change the loss: their share of the gradient is zero in expectation, and is
        # left out exactly. The V + 1 masks of an item share its logit, so theirs add up.
        surrogate = rows.sum(gap[rows.users] * weight.sum(0) * logits)
        return losses + (surrogate - surrogate.detach())

    @torch.no_grad()
    def tightness(self, rows: Rows, counts: Sequence[int], draws: int = 8) -> list[float]:
        """The mean negative bound (beta = 1) with V = each of `counts`, over the same generating masks and noise.

        It falls with V in expectation, from the ELBO's towards that of the true log q.

        >>> from scipy.sparse import csr_array
        >>> model = SIVAE(items=4, dropout=BernoulliDropout(4), hidden=8, latent=2)
        >>> len(model.tightness(Rows.of(csr_array([[1.0, 1, 0, 0]])), [0, 1, 8]))
        3
        """
        totals = torch.zeros(len(counts), dtype=torch.float64)
        for _ in range(draws):
            noise = torch.randn_like(rows.values.new_empty(len(rows), self.latent))
            multipliers = self.draw(rows, max(counts) + 1)
            totals += torch.stack([self.bound(rows, multipliers[: v + 1], noise).double().mean() for v in counts])
        return (totals / draws).tolist()

    def draw(self, rows: Rows, versions: int) -> Tensor:
        """Fresh multipliers at the entries, (versions, n)."""
        if not isinstance(self.dropout, BernoulliDropout):
            return soft_multiplier(self.dropout, rows.items, versions)
        uniforms = torch.rand_like(rows.values.expand(versions, -1))
        return hard_multiplier(self.dropout, rows.items, (uniforms < at(self.dropout.keep, rows.items)).to(rows.values))

    @torch.no_grad()
    def scores(self, fold_in: CSR) -> Tensor:
        """Logits of all items at the posterior mean under the mean mask."""
        rows = Rows.of(fold_in, like=self.encoder.input.weight)
        posterior = self.encoder(rows, mean_multiplier(self.dropout, rows.items) * rows.normalised)
        return self.decoder(posterior.mean)


def _weight(estimator: str, logits: Tensor, uniforms: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """What (l1 - l2) is multiplied by for each mask and entry, (V + 1, n)."""
    if estimator == "arm":
        return uniforms - 0.5  # eq. 7
    return 0.5 * (first != second) * (1 - 2 * second) * logits.abs().sigmoid()
