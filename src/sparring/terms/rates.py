"""An estimated gradient for the rates of learned dropout."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..estimators.antithetic import ARM
from ..estimators.enumeration import Enumerate
from ..estimators.sampling import Estimator, surrogate
from ..estimators.score import Reinforce
from ..nn import BernoulliDropout
from ..passes.step import Step
from ..penalties import full_precision
from ..sites.learned import LearnedMask, draw_of
from ..sites.site import Slot
from .playable import Playable

READS = "it reads the rates of its layers, which are parameters, between their passes"


@dataclass(frozen=True)
class LearnedRates(Playable):
    """Give the logits of learnable dropout the gradient of the expected supervised loss; adds nothing to its value.

    The clean pass has drawn the masks and trains the model; the estimator asks for the loss under other masks, in
    passes without a graph that start at the first learnable dropout and repeat every other random number.

    >>> from torch import nn
    >>> import sparring as sp
    >>> model = nn.Sequential(nn.Linear(2, 4), sp.nn.BernoulliDropout(4), nn.Linear(4, 2))
    >>> objective = sp.Objective(model, sp.cross_entropy, LearnedRates())
    >>> objective(torch.randn(8, 2), torch.zeros(8, dtype=torch.long)).backward()
    >>> model[1].logits.grad.shape
    torch.Size([4])

    Args:
        at: which `BernoulliDropout` layers, a glob; all by default. Layers in evaluation or frozen are left alone.
        estimator: `ARM()`, `DisARM()`, `LeaveOneOut()`, `Reinforce()` or `Enumerate()`.
        weight: factor of the gradient.
        joint: credit every mask with the whole batch's loss instead of its own example's. Needed for an unbiased
            estimate where examples interact after a learnable dropout (batch norm in training mode); noisier. Not with
            `Enumerate()` or `Reinforce("batch")`, which look at one example at a time.
        name: how diagnostics call the term.

    Paper: eq. 8.
    """

    at: str = "**"
    estimator: Estimator = field(default_factory=ARM)
    weight: float = 1.0
    joint: bool = False
    name: str = "rates"

    site: LearnedMask = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        per_example = isinstance(self.estimator, Enumerate) or (
            isinstance(self.estimator, Reinforce) and self.estimator.baseline == "batch"
        )
        if self.joint and per_example:
            raise ValueError(
                f"joint=True credits the whole batch, which {self.estimator} takes apart; use ARM() or DisARM()"
            )
        object.__setattr__(self, "site", LearnedMask(self.at))

    whole = READS

    @property
    def sites(self) -> tuple[LearnedMask, ...]:  # type: ignore[override]
        return (self.site,)

    @property
    def idle(self) -> bool:  # type: ignore[override]
        return self.weight == 0

    def play(self, step: Step) -> Tensor | None:
        """A per-example charge of value zero whose gradient is the estimate."""
        learning = [pair for pair in self._layers(step) if pair[1].training and pair[1].logits.requires_grad]
        if not learning:
            return None
        assert step.losses is not None
        slots = [slot for slot, _ in learning]
        attached = [full_precision(layer.units.place(layer.logits, slot.value)) for slot, layer in learning]
        draws = [draw_of(slot.value) for slot in slots]
        seen: list[Tensor] = []

        def evaluate(masks: list[Tensor]) -> Tensor:
            placed = {}
            for (slot, layer), mask, logits in zip(learning, masks, attached):
                tiny = torch.finfo(logits.dtype).tiny
                placed[slot.name] = mask / torch.sigmoid(logits).clamp_min(tiny) if layer.rescale else mask
            with self.site.repeating(step.slots(self.site)):
                losses = step.loss(step.run({self.site: placed}, graph="none"))
            seen.append(losses)
            return credited(losses)

        def credited(losses: Tensor) -> Tensor:
            return losses.sum().expand_as(losses) if self.joint else losses

        with torch.no_grad():
            masks = [
                (s.value != 0 if d[1].rescale else s.value).to(a.dtype) for s, d, a in zip(slots, learning, attached)
            ]
            known = [draw.uniform for draw in draws if draw is not None]
            losses = credited(step.losses.detach())
            fixed = [a.detach() for a in attached]
            gradients = self.estimator.gradient(
                fixed, masks, losses, evaluate, known if len(known) == len(slots) else None
            )
            gradients = [g if s.valid is None else g * s.valid for g, s in zip(gradients, slots)]
        means = {f"keep/{slot.name}": layer.keep.detach().mean() for slot, layer in learning}
        tried = torch.stack(seen or [step.losses.detach()])  # (masks tried, B)
        step.note(penalty=tried.mean(), unperturbed=(~tried.isfinite()).sum(), **means)
        return self.weight * surrogate(attached, gradients)

    def _layers(self, step: Step) -> list[tuple[Slot, BernoulliDropout]]:
        modules = step.layout.matches[self.site]
        found = []
        for slot in step.slots(self.site):
            layer = modules.get(slot.module, step.model)
            assert isinstance(layer, BernoulliDropout)
            found.append((slot, layer))
        return found
