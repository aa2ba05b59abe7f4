"""VAE (plain, with dropout, VampPrior or IAF), DAE and CDAE for implicit feedback."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ....metrics.ranking import CSR
from .batch import Rows
from .elbo import gaussian_kl, multinomial_log_likelihood, standard_log_density
from .iaf import IAF
from .networks import Encoder, SparseLinear, decoder
from .vamp import VampPrior


class VAE(nn.Module):
    """Variational autoencoder with multinomial likelihood (Liang et al. 2018), optionally with a richer prior or flow.

    >>> from scipy.sparse import csr_array
    >>> likes = csr_array([[1.0, 1, 0, 0], [0, 0, 1, 1]])
    >>> model = VAE(items=4, hidden=8, latent=2, dropout=0.5)
    >>> model.losses(Rows.of(likes), beta=0.2).shape, model.scores(likes).shape
    (torch.Size([2]), torch.Size([2, 4]))

    Args:
        items: size of the catalogue.
        hidden: width of the encoder's and decoder's tanh layer.
        latent: number of latent variables.
        dropout: drop rate of the (length-one) input; 0 for the plain VAE.
        pseudo_users: components of a VampPrior; 0 keeps N(0, I).
        flow_steps: steps of an inverse autoregressive flow; 0 keeps the Gaussian posterior.

    Paper: Boluki et al. 2020, eq. 4 and table 2.
    """

    def __init__(
        self,
        items: int,
        hidden: int = 600,
        latent: int = 200,
        dropout: float = 0.0,
        pseudo_users: int = 0,
        flow_steps: int = 0,
    ) -> None:
        super().__init__()
        self.encoder = Encoder(items, hidden, latent)
        self.decoder = decoder(latent, hidden, items)
        self.dropout = nn.Dropout(dropout)
        self.prior = VampPrior(items, pseudo_users) if pseudo_users else None
        self.flow = IAF(latent, hidden, flow_steps, hidden=latent) if flow_steps else None

    def forward(self, rows: Rows, beta: float = 1.0) -> Tensor:
        return self.losses(rows, beta)

    def losses(self, rows: Rows, beta: float = 1.0, noise: Tensor | None = None) -> Tensor:
        """Negative bound per user, -log p(x | latent) + beta KL; the KL by one sample unless it has a closed form."""
        posterior = self.encoder(rows, self.dropout(rows.normalised))
        start = posterior.sample(torch.randn_like(posterior.mean) if noise is None else noise)
        latent, log_determinant = self.flow(start, posterior.hidden) if self.flow is not None else (start, 0.0)
        if self.prior is None and self.flow is None:
            divergence = gaussian_kl(posterior)
        else:
            prior = standard_log_density(latent) if self.prior is None else self.prior(latent, self.encoder)
            divergence = posterior.log_density(start) - log_determinant - prior
        return beta * divergence - multinomial_log_likelihood(self.decoder(latent), rows)

    @torch.no_grad()
    def scores(self, fold_in: CSR) -> Tensor:
        """Logits of all items at the posterior's centre, nothing dropped."""
        rows = Rows.of(fold_in, like=self.encoder.input.weight)
        posterior = self.encoder(rows, rows.normalised)
        latent = posterior.mean if self.flow is None else self.flow(posterior.mean, posterior.hidden)[0]
        return self.decoder(latent)


class DAE(nn.Module):
    """Denoising autoencoder with multinomial likelihood: one tanh layer, input dropout, no latent noise.

    >>> from scipy.sparse import csr_array
    >>> likes = csr_array([[1.0, 1, 0, 0], [0, 0, 1, 1]])
    >>> DAE(items=4, hidden=3).losses(Rows.of(likes)).shape
    torch.Size([2])

    Args:
        items: size of the catalogue.
        hidden: width of the code.
        dropout: drop rate of the input.
    """

    def __init__(self, items: int, hidden: int = 200, dropout: float = 0.5) -> None:
        super().__init__()
        self.input = SparseLinear(items, hidden)
        self.output = nn.Linear(hidden, items)
        nn.init.xavier_uniform_(self.output.weight)
        nn.init.zeros_(self.output.bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, rows: Rows, beta: float = 1.0) -> Tensor:
        return self.losses(rows, beta)

    def losses(self, rows: Rows, beta: float = 1.0) -> Tensor:
        """-log p(x | corrupted x) per user; `beta` is there for the VAEs' sake and ignored."""
        code = self.input(rows, self.dropout(rows.normalised)).tanh()
        return -multinomial_log_likelihood(self.output(code), rows)

    @torch.no_grad()
    def scores(self, fold_in: CSR) -> Tensor:
        """Logits of all items, nothing dropped."""
        rows = Rows.of(fold_in, like=self.input.weight)
        return self.output(self.input(rows, rows.normalised).tanh())


class CDAE(DAE):
    """Collaborative denoising autoencoder (Wu et al. 2016): a DAE whose code also adds a vector of the user's own.

    A user the model never saw has no vector; `scores` fits one to the shown items by `fold_in_steps` steps of Adam with
    the network fixed (0: the zero vector, which is the prior's mean).

    >>> from scipy.sparse import csr_array
    >>> likes = csr_array([[1.0, 1, 0, 0], [0, 0, 1, 1]])
    >>> model = CDAE(items=4, users=2, hidden=3)
    >>> model.losses(Rows.of(likes)).shape, model.scores(likes).shape
    (torch.Size([2]), torch.Size([2, 4]))

    Args:
        items: size of the catalogue.
        users: number of training users; `Rows.ids` says which they are.
        hidden: width of the code.
        dropout: drop rate of the input.
        ridge: weight of ||v_u||^2 / 2 in the loss, in training and when folding in.
        fold_in_steps: steps to fit a new user's vector.
    """

    def __init__(
        self,
        items: int,
        users: int,
        hidden: int = 200,
        dropout: float = 0.5,
        ridge: float = 1.0,
        fold_in_steps: int = 20,
    ) -> None:
        super().__init__(items, hidden, dropout)
        self.vectors = nn.Embedding(users, hidden)
        nn.init.zeros_(self.vectors.weight)
        self.ridge, self.fold_in_steps = ridge, fold_in_steps

    def losses(self, rows: Rows, beta: float = 1.0) -> Tensor:
        return self._losses(rows, self.dropout(rows.normalised), self.vectors(rows.ids))

    def _losses(self, rows: Rows, entries: Tensor, vectors: Tensor) -> Tensor:
        code = (self.input(rows, entries) + vectors).tanh()
        return self.ridge / 2 * vectors.square().sum(-1) - multinomial_log_likelihood(self.output(code), rows)

    @torch.no_grad()
    def scores(self, fold_in: CSR) -> Tensor:
        rows = Rows.of(fold_in, like=self.input.weight)
        vectors = self.fold_in(rows)
        return self.output((self.input(rows, rows.normalised) + vectors).tanh())

    @torch.enable_grad()
    def fold_in(self, rows: Rows, lr: float = 0.05) -> Tensor:
        """Vectors for new users, (B, hidden): each user's own problem, whoever shares the batch."""
        vectors = rows.values.new_zeros(len(rows), self.output.in_features).requires_grad_()
        optimiser = torch.optim.Adam([vectors], lr=lr)
        before = self.input(rows, rows.normalised).detach()
        weight, bias = self.output.weight.detach(), self.output.bias.detach()
        for _ in range(self.fold_in_steps):
            logits = F.linear((before + vectors).tanh(), weight, bias)
            loss = self.ridge / 2 * vectors.square().sum() - multinomial_log_likelihood(logits, rows).sum()
            (vectors.grad,) = torch.autograd.grad(loss, vectors)
            optimiser.step()
        return vectors.detach()
