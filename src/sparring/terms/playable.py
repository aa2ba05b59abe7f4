"""What an objective asks of a term."""

from abc import ABC, abstractmethod
from collections.abc import Callable

from torch import Tensor

from ..passes.step import Step
from ..sites.site import Site

Weight = float | Callable[[int], float]


def at_step(weight: Weight, number: int) -> float:
    """A weight at a training step.

    >>> at_step(0.5, 3), at_step(lambda step: step / 10, 3)
    (0.5, 0.3)
    """
    return float(weight(number)) if callable(weight) else weight


class Playable(ABC):
    """Anything an objective can add up. A term of your own writes `play`, and of the rest what differs.

    Attributes:
        name: how diagnostics call it; an objective numbers terms of equal name.
        sites: where it acts; what stands there in the clean pass is in `step.slots(site)`.
        idle: never charges anything (weight or radius 0): the objective leaves it out.
        label_free: can be played without targets.
        replaces: the share of the clean supervised loss that it takes over, 0 to 1 (variational dropout: 1, fraternal: 1/2).
        alone: why it cannot play beside other terms; empty if it can.
        unrolls: differentiates the model twice.
        blind: needs no clean pass where the supervised loss is taken over completely.
        whole: why it needs all parameters in full at once; empty if each process may hold a part of them (FSDP2).
        joint: may see labelled and unlabelled examples in one batch, the labelled ones first (`step.labelled`).
    """

    name: str = "term"
    sites: tuple[Site, ...] = ()
    idle: bool = False
    label_free: bool = False
    replaces: float = 0.0
    alone: str = ""
    unrolls: bool = False
    whole: str = ""
    blind: bool = False
    joint: bool = False

    @abstractmethod
    def play(self, step: Step) -> Tensor | None:
        """What it charges: one number per example (B,), or one for the batch (); weighted, with its graph. None: nothing."""


class Leading(Playable):
    """A term that leads the whole training step instead of adding to it: methods that interleave ascent and updates.

    Attributes:
        parts: how many losses one training step has.
        update_each_loss: the training loop updates the parameters after every loss, not after the last one.
    """

    parts: int = 1
    update_each_loss: bool = False

    @abstractmethod
    def lead(self, begin: Callable[[], Step], part: int | None) -> tuple[Tensor, Step]:
        """Loss number `part` of a training step, or for None all of them in one; and the step it belongs to."""

    def play(self, step: Step) -> Tensor | None:
        raise TypeError(f"{self.name} leads a training step and cannot be added to one")
