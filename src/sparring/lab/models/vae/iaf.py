"""Inverse autoregressive flow: a posterior bent by invertible autoregressive steps (Kingma et al. 2016)."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class MaskedStep(nn.Module):
    """One gated step `z' = s z + (1 - s) m`, where `m` and `s = sigmoid(a)` at place i see only places before i.

    The Jacobian is triangular with diagonal s, so its log determinant is `sum log s`.

    >>> step = MaskedStep(latent=3, hidden=8, context=2)
    >>> moved, log_determinant = step(torch.zeros(4, 3), torch.zeros(4, 2))
    >>> moved.shape, log_determinant.shape
    (torch.Size([4, 3]), torch.Size([4]))

    Args:
        latent: number of variables.
        hidden: width of the masked network.
        context: size of what it may see of the user, unmasked.
        gate: initial bias of a; 2 starts near the identity.
    """

    seen: Tensor
    told: Tensor

    def __init__(self, latent: int, hidden: int, context: int, gate: float = 2.0) -> None:
        super().__init__()
        degree = torch.arange(hidden) % max(latent - 1, 1)  # hidden unit of degree d sees places 0 .. d
        place = torch.arange(latent)
        self.register_buffer("seen", (degree[:, None] >= place).float(), persistent=False)  # (hidden, latent)
        self.register_buffer("told", (place[:, None] > degree).float().repeat(2, 1), persistent=False)
        self.inner = nn.Linear(latent, hidden)
        self.context = nn.Linear(context, hidden, bias=False)
        self.outer = nn.Linear(hidden, 2 * latent)
        with torch.no_grad():
            self.outer.weight.mul_(0.1)
            self.outer.bias.copy_(torch.cat([torch.zeros(latent), torch.full((latent,), gate)]))

    def forward(self, latent: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        hidden = F.linear(latent, self.inner.weight * self.seen, self.inner.bias) + self.context(context)
        shift, gate = F.linear(hidden.tanh(), self.outer.weight * self.told, self.outer.bias).chunk(2, -1)
        share = gate.sigmoid()
        return share * latent + (1 - share) * shift, F.logsigmoid(gate).sum(-1)


class IAF(nn.Module):
    """Several steps, the order of the places reversed between them.

    >>> flow = IAF(latent=3, context=2, steps=2, hidden=8)
    >>> latent, log_determinant = flow(torch.randn(4, 3), torch.zeros(4, 2))
    >>> latent.shape, log_determinant.shape
    (torch.Size([4, 3]), torch.Size([4]))

    Args:
        latent: number of variables.
        context: size of the encoder's hidden layer, which every step sees.
        steps: how many.
        hidden: width of each step's network.
    """

    def __init__(self, latent: int, context: int, steps: int = 2, hidden: int = 200) -> None:
        super().__init__()
        if steps < 1:
            raise ValueError(f"steps={steps} makes no flow; use at least 1")
        self.steps = nn.ModuleList(MaskedStep(latent, hidden, context) for _ in range(steps))

    def forward(self, latent: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        """(B, D) and (B, context) -> the moved (B, D), and log |det Jacobian| (B,)."""
        total = latent.new_zeros(len(latent))
        for step in self.steps:
            latent, log_determinant = step(latent.flip(-1), context)
            total = total + log_determinant
        return latent, total
