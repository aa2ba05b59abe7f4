"""Transfer attacks: adversarial inputs made on one model and given to another."""

from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor, nn


class Attack(Protocol):
    """Anything that turns inputs into adversarial inputs for a model."""

    def __call__(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Transfer:
    """Craft on a surrogate, whatever the model under attack: the black-box attacks of Table 5.

    Example:
        >>> import sparring as sp, torch
        >>> from sparring.attacks import FGSM
        >>> target, surrogate = torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)
        >>> x, y = torch.full((2, 4), 0.5), torch.tensor([0, 1])
        >>> fast = FGSM(sp.Linf(0.1, box=(0, 1)))
        >>> attack = Transfer(fast, surrogate)
        >>> bool(torch.equal(attack(target, x, y), fast(surrogate, x, y)))
        True

    Args:
        attack: how to craft.
        surrogate: the model the attacker has.
        kind: what the attacker knows, for the record: "I" a plain ensemble of another architecture, "II" a model
            trained with the same defence.
    """

    attack: Attack
    surrogate: nn.Module
    kind: Literal["I", "II"] = "I"

    def __call__(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """Adversarial inputs for the surrogate; `model` is not looked at."""
        return self.attack(self.surrogate, inputs, targets)
