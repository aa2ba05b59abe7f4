"""Entropy minimisation: be sure of what you say about data without labels."""

from dataclasses import dataclass

from torch import Tensor

from ..passes.step import Step
from ..penalties import full_precision, per_example
from .playable import Playable, Weight, at_step


@dataclass(frozen=True)
class Entropy(Playable):
    """Charges the entropy of the clean predictions (Grandvalet and Bengio 2005; VAT + EntMin in Miyato et al. 2018, eq. 16).

    >>> import torch, sparring as sp
    >>> objective = sp.Objective(torch.nn.Linear(2, 3), sp.cross_entropy, sp.Entropy())
    >>> bool(objective(torch.ones(4, 2)) <= torch.log(torch.tensor(3.0)))
    True

    Args:
        weight: factor, or a function of the training step.
        name: how diagnostics call the term.
    """

    weight: Weight = 1.0
    name: str = "entropy"

    label_free = True
    joint = True

    @property
    def idle(self) -> bool:  # type: ignore[override]
        return self.weight == 0

    def play(self, step: Step) -> Tensor | None:
        weight = at_step(self.weight, step.number)
        if weight == 0:
            return None
        charge = step.penalty(_entropy, step.outputs, step.outputs)
        step.note(penalty=step.average(charge.detach()), weight=weight)
        return weight * charge


def _entropy(clean: Tensor, _: Tensor, valid: Tensor | None = None) -> Tensor:
    logs = full_precision(clean).log_softmax(-1)
    return per_example(-(logs.exp() * logs).sum(-1), valid)
