"""Several networks trained at once, predicting with the mean of their softmax outputs."""

import math
from collections.abc import Iterable
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..losses import member_losses
from .members import Member


class EnsembleOutput(NamedTuple):
    """What an ensemble says: its own logits and every member's.

    >>> out = EnsembleOutput.of(torch.zeros(2, 3, 5))
    >>> tuple(out.logits.shape), bool(torch.allclose(out.logits.exp(), torch.tensor(0.2)))
    ((2, 5), True)

    Attributes:
        logits: log of the mean softmax over the members, (B, C); its softmax is the ensemble's prediction.
        members: each member's own logits, (B, K, C).
    """

    logits: Tensor
    members: Tensor

    @classmethod
    def of(cls, members: Tensor) -> "EnsembleOutput":
        """Average the members' softmax outputs in log space, float32 at least."""
        if members.shape[-1] < 2:
            raise ValueError(
                f"members give {tuple(members.shape)} logits; the softmax of one is always 1: give two classes"
            )
        wide = members.float() if members.dtype in (torch.float16, torch.bfloat16) else members
        return cls(torch.logsumexp(F.log_softmax(wide, -1), 1) - math.log(members.shape[1]), members)


class Ensemble(nn.Module):
    """K networks as one model: trained together, optionally tied by a dropout that looks at all their features.

    >>> def net():
    ...     return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> ensemble = Ensemble([net(), net(), net()], head="2")
    >>> out = ensemble(torch.ones(5, 4))
    >>> tuple(out.logits.shape), tuple(out.members.shape)
    ((5, 3), (5, 3, 3))
    >>> targets = torch.tensor([0, 1, 2, 0, 1])
    >>> tuple(member_cross_entropy(out, targets).shape)
    (5,)

    The networks may differ. They stay usable on their own: parameters are shared, not copied.

    Args:
        members: two networks at least, each returning logits (B, C).
        head: dotted name of the last linear layer, one for all or one per member.
        dropout: a module that takes the list of the members' features (B, units) and returns them masked, such as
            ``LaplacePriorityDropout``; it acts in training mode only. None: plain ensemble.

    Paper: Wu et al., "Deep Ensemble Robustness by Adaptive Sampling in Dropout-Based Simultaneous Training", eq. 1.
    """

    def __init__(
        self, members: Iterable[nn.Module], head: str | Iterable[str] = "fc", dropout: nn.Module | None = None
    ) -> None:
        super().__init__()
        networks = list(members)
        if len(networks) < 2:
            raise ValueError(f"members has {len(networks)} network(s); an ensemble needs at least 2")
        if len({id(network) for network in networks}) < len(networks):
            raise ValueError("members repeats the same network object; build each member anew, or copy.deepcopy it")
        heads = [head] * len(networks) if isinstance(head, str) else list(head)
        if len(heads) != len(networks):
            raise ValueError(f"head names {len(heads)} layers for {len(networks)} members; give one name, or one each")
        self.members = nn.ModuleList(
            Member(network, name, f"member {k}") for k, (network, name) in enumerate(zip(networks, heads))
        )
        self.dropout = dropout
        self._check_heads()

    def _check_heads(self) -> None:
        linear = [m.head for m in self._members() if isinstance(m.head, nn.Linear)]
        classes = [layer.out_features for layer in linear]
        if len(set(classes)) > 1:
            raise ValueError(f"members end in {classes} classes; every head must have the same number of outputs")
        check = getattr(self.dropout, "check_sizes", None)
        if check is not None and len(linear) == len(self.members):
            check([layer.in_features for layer in linear])

    def features(self, inputs: Tensor) -> list[Tensor]:
        """What enters each member's head, unmasked: K tensors (B, units)."""
        return [member.features(inputs) for member in self._members()]

    def _members(self) -> list[Member]:
        return [member for member in self.members if isinstance(member, Member)]

    def forward(self, inputs: Tensor) -> EnsembleOutput:
        if self.dropout is None or not self.dropout.training:
            logits = [member(inputs) for member in self.members]
        else:
            masked = self.dropout(self.features(inputs))
            logits = [member.head(features) for member, features in zip(self._members(), masked)]
        return EnsembleOutput.of(torch.stack(logits, 1))

    def __len__(self) -> int:
        return len(self.members)

    def extra_repr(self) -> str:
        return f"K={len(self.members)}"


def member_cross_entropy(
    outputs: EnsembleOutput | Tensor, targets: Tensor, reduce: Literal["mean", "sum"] = "mean"
) -> Tensor:
    """Each member's own cross-entropy, averaged over the members: the loss an ensemble is trained with, (B,).

    >>> member_cross_entropy(torch.zeros(1, 3, 4), torch.tensor([2]))
    tensor([1.3863])

    Args:
        outputs: an ``EnsembleOutput`` or member logits (B, K, C).
        targets: class indices (B,).
        reduce: "mean" over the members (the priority-dropout paper), or their "sum" (ADP, TRS).
    """
    if reduce not in ("mean", "sum"):
        raise ValueError(f'reduce={reduce!r} is unknown; choose "mean" or "sum"')
    logits = outputs if isinstance(outputs, Tensor) else outputs.members
    losses = member_losses(logits, targets)
    return losses.mean(1) if reduce == "mean" else losses.sum(1)
