"""Diversity penalties on what members say and on their input gradients: ADP, DEG and the two parts of TRS."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from .gradients import pair_cosines


def adp(
    members: Tensor, targets: Tensor, entropy: float = 2.0, determinant: float = 0.5, offset: float = 1e-6
) -> Tensor:
    """Rewards an uncertain ensemble whose members disagree on the wrong classes, per example (B,).

    >>> same = torch.tensor([[[2.0, 1.0, 0.0], [2.0, 1.0, 0.0]]])
    >>> apart = torch.tensor([[[2.0, 1.0, 0.0], [2.0, 0.0, 1.0]]])
    >>> bool(adp(apart, torch.tensor([0])) < adp(same, torch.tensor([0])))
    True

    Args:
        members: member logits (B, K, C).
        targets: class indices (B,).
        entropy: weight of the entropy of the mean prediction.
        determinant: weight of the log-determinant of the members' normalised predictions over the non-true classes.
        offset: added to the diagonal of the K x K matrix.

    Paper: Pang et al., "Improving Adversarial Robustness via Promoting Ensemble Diversity", ICML 2019, eq. 5-7.
    """
    logs = F.log_softmax(members.double(), -1)  # K x K determinants are cheap; in single precision they would fail
    mean = torch.logsumexp(logs, 1) - math.log(members.shape[1])
    uncertainty = -(mean.exp() * mean).sum(-1)
    others = logs.masked_fill(F.one_hot(targets, members.shape[2]).bool().unsqueeze(1), -torch.inf)
    others = (others - others.detach().amax(-1, keepdim=True)).exp()  # scale-free, so that confident rows survive
    others = others / others.norm(dim=-1, keepdim=True)
    gram = others @ others.transpose(1, 2) + offset * torch.eye(members.shape[1], dtype=logs.dtype, device=logs.device)
    factor, failed = torch.linalg.cholesky_ex(gram)  # the other one asks the device whether it succeeded
    volume = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1) * 2
    volume = torch.where(failed == 0, volume, torch.nan)
    charge = -entropy * uncertainty - determinant * volume
    return charge.to(torch.float64 if members.dtype == torch.float64 else torch.float32)


def deg(gradients: Tensor) -> Tensor:
    """Sum over pairs of members of the signed cosine of their input gradients, per example (B,).

    >>> deg(torch.tensor([[[1.0, 0.0], [-2.0, 0.0], [0.0, 3.0]]]))
    tensor([-1.])

    Paper: Huang et al., "Adversarial Defence by Diversified Simultaneous Training of Deep Ensembles", AAAI 2021.
    """
    return pair_cosines(gradients).sum(1)


def similarity(gradients: Tensor) -> Tensor:
    """Mean over pairs of members of the absolute cosine of their input gradients (TRS), per example (B,).

    >>> similarity(torch.tensor([[[1.0, 0.0], [-2.0, 0.0]]]))
    tensor([1.])
    """
    return pair_cosines(gradients).abs().mean(1)


def magnitude(gradients: Tensor) -> Tensor:
    """Twice the mean over members of the squared norm of their input gradients (TRS), per example (B,).

    >>> magnitude(torch.tensor([[[3.0, 4.0], [0.0, 0.0]]]))
    tensor([25.])
    """
    return 2 * gradients.square().sum(-1).mean(1)
