"""Dropout multipliers at the items a user has: the learned-dropout layers of `sparring.nn`, read sparsely.

A dense layer would draw items x users numbers to use the few that meet an item; a mask on an absent item changes
nothing. The layers keep the parameters, these functions apply them to the stored entries only.
"""

import torch
from torch import Tensor

from ....nn.dropout.bernoulli import BernoulliDropout
from ....nn.dropout.concrete import ConcreteDropout
from ....nn.dropout.gaussian import GaussianDropout

Learned = BernoulliDropout | ConcreteDropout | GaussianDropout


def at(parameter: Tensor, items: Tensor) -> Tensor:
    """The parameter of each entry, (n,): one per item, or a single one shared by all.

    >>> at(torch.tensor([3.0]), torch.tensor([0, 7])).tolist()
    [3.0, 3.0]
    """
    return parameter.expand(len(items)) if parameter.numel() == 1 else parameter[items]


def soft_multiplier(layer: ConcreteDropout | GaussianDropout, items: Tensor, versions: int) -> Tensor:
    """Fresh relaxed masks at the entries, (versions, n), differentiable in the layer's rates.

    >>> soft_multiplier(GaussianDropout(9, learn=True), torch.tensor([0, 4, 4]), versions=2).shape
    torch.Size([2, 3])
    """
    if isinstance(layer, GaussianDropout):
        deviation = at(layer.deviation, items)
        return 1 + deviation * torch.randn(versions, len(items), dtype=deviation.dtype, device=items.device)
    logit = at(layer.p_logit, items)
    uniform = torch.rand(versions, len(items), dtype=logit.dtype, device=items.device)
    noise = torch.logit(uniform, eps=torch.finfo(logit.dtype).eps)
    keep = torch.sigmoid(-logit).clamp_min(torch.finfo(logit.dtype).tiny)
    return torch.sigmoid(-(logit + noise) / (layer.temperature or 0.1)) / keep


def hard_multiplier(layer: BernoulliDropout, items: Tensor, mask: Tensor) -> Tensor:
    """Zeros and ones as the layer applies them: as they are, or divided by the keep rate (differentiably).

    >>> hard_multiplier(BernoulliDropout(2, keep=0.5, rescale=True), torch.tensor([1]), torch.tensor([[1.0]])).tolist()
    [[2.0]]
    """
    return mask / at(layer.keep, items).clamp_min(torch.finfo(mask.dtype).tiny) if layer.rescale else mask


def mean_multiplier(layer: Learned, items: Tensor) -> Tensor:
    """What stands for the mask in a deterministic pass: the keep rate, or one where the masks have mean one.

    >>> mean_multiplier(BernoulliDropout(2, keep=0.25), torch.tensor([1])).tolist()
    [0.25]
    """
    if isinstance(layer, BernoulliDropout) and not layer.rescale:
        return at(layer.keep, items)
    return torch.ones(len(items), device=items.device)
