"""ADP, DEG and TRS as terms of an objective: alone, together, and beside adversarial training."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from ...balls import Ball, Linf, check_ball
from ...passes.one import Pass
from ...passes.step import Step
from ...sites.watched import WatchedInput
from ..playable import Playable
from .gradients import input_gradients
from .measures import adp, deg, magnitude, similarity

TWICE = "it differentiates twice through all parameters"


def members_of(output: Any) -> Tensor:
    """The member logits (B, K, C) of what an ensemble returned: give it to an objective as ``outputs=``.

    >>> from sparring.ensembles import EnsembleOutput
    >>> tuple(members_of(EnsembleOutput.of(torch.zeros(2, 3, 5))).shape)
    (2, 3, 5)
    """
    found = getattr(output, "members", None)
    if not isinstance(found, Tensor) or found.dim() != 3:
        raise TypeError(
            f"an ensemble term needs sparring.ensembles.Ensemble; the model returns {type(output).__name__}"
        )
    return found


def clean_gradients(step: Step) -> Tensor:
    """Members' input gradients in the clean pass, with graph, (B, K, D); computed once for all terms of a step."""
    key = "ensembles/input_gradients"
    if key not in step.cache:
        (slot,) = step.slots(WatchedInput())
        members, variable = step.raw, slot.value
        if not variable.requires_grad:  # evaluated under no_grad: the clean pass has no graph to differentiate
            with torch.enable_grad():
                variable = torch.zeros_like(variable).requires_grad_()
                members = step.run({WatchedInput(): [variable]}, raw=True)
        step.cache[key] = input_gradients(members_of(members), step.targets, variable, torch.is_grad_enabled())
        step.backward_passes += 1
    return step.cache[key]


@dataclass(frozen=True)
class ADP(Playable):
    """Adaptive diversity promoting: entropy of the ensemble and the volume its members span on the wrong classes.

    >>> import sparring as sp
    >>> nets = [torch.nn.Sequential(torch.nn.Linear(4, 3)) for _ in range(2)]
    >>> ensemble = sp.ensembles.Ensemble(nets, head="0")
    >>> objective = sp.Objective(ensemble, sp.ensembles.member_cross_entropy, ADP(), outputs=members_of)
    >>> tuple(objective(torch.zeros(5, 4), torch.tensor([0, 1, 2, 0, 1])).shape)
    ()

    The published loss adds this to the *sum* of the members' cross-entropies.

    Args:
        entropy: weight of the entropy of the mean prediction.
        determinant: weight of the log-determinant.
        name: how diagnostics call the term.

    Paper: Pang et al., ICML 2019.
    """

    entropy: float = 2.0
    determinant: float = 0.5
    name: str = "adp"

    @property
    def idle(self) -> bool:  # type: ignore[override]
        return self.entropy == 0 and self.determinant == 0

    def play(self, step: Step) -> Tensor:
        charge = adp(members_of(step.raw), step.targets, self.entropy, self.determinant)
        step.note(penalty=charge.detach().mean())
        return charge


@dataclass(frozen=True)
class DEG(Playable):
    """Dispersed ensemble gradients: members' input gradients should point apart. Differentiates twice.

    >>> DEG(weight=0.0).idle
    True

    Args:
        weight: factor of the sum over pairs of signed cosines.
        name: how diagnostics call the term.

    Paper: Huang et al., AAAI 2021.
    """

    weight: float = 0.01
    name: str = "deg"

    sites = (WatchedInput(),)
    whole = TWICE

    @property
    def idle(self) -> bool:  # type: ignore[override]
        return self.weight == 0

    def play(self, step: Step) -> Tensor:
        charge = deg(clean_gradients(step))
        step.note(penalty=charge.detach().mean(), weight=self.weight)
        return self.weight * charge


@dataclass(frozen=True)
class TRS(Playable):
    """Transferability reduced smooth ensemble: gradients that differ in direction and are small around the data.

    >>> TRS(similarity=0.0, smoothness=0.0).idle
    True

    The second half of each batch is first moved to where the gradients are large: a few signed ascent steps on the
    gradient norm from a random start in a ball. The published loss adds this to the *sum* of the members'
    cross-entropies. Gradients are those of each example's own loss; the released code takes the batch mean's, which
    divides the smoothness term by the square of the batch size (``released_scale=True``).

    Args:
        similarity: weight of the mean absolute cosine over pairs.
        smoothness: weight of twice the mean squared gradient norm.
        ball: how far, within which range of valid data; or a function from the training step to a ball (published: an
            L-infinity radius of .01 growing to .03, pixels in [0, 1]).
        steps: ascent steps, each of a third of the radius (published: two radii over six steps).
        released_scale: divide the gradients by the batch size before squaring.
        name: how diagnostics call the term.

    Paper: Yang et al., "TRS: Transferability Reduced Ensemble via Promoting Gradient Diversity and Model Smoothness",
    NeurIPS 2021.
    """

    similarity: float = 40.0
    smoothness: float = 2.5
    ball: Ball | Callable[[int], Ball] = Linf(0.03, box=(0, 1))
    steps: int = 6
    released_scale: bool = False
    name: str = "trs"

    sites = (WatchedInput(),)
    whole = TWICE

    def __post_init__(self) -> None:
        if not callable(self.ball):
            check_ball(self.ball, "TRS")
        if self.steps < 0:
            raise ValueError(f"TRS(steps={self.steps}): 0 leaves the inputs at their random start, less is impossible")

    @property
    def idle(self) -> bool:  # type: ignore[override]
        return self.similarity == 0 and self.smoothness == 0

    def play(self, step: Step) -> Tensor:
        gradients = clean_gradients(step)
        alike = similarity(gradients)
        step.note(similarity=alike.detach().mean())
        if self.smoothness == 0:
            return self.similarity * alike
        still = len(gradients) // 2
        factor = 1.0 / len(gradients) if self.released_scale else 1.0
        moved = self._moved_gradients(step, still)
        rough = magnitude(factor * torch.cat([gradients[:still], moved]))
        step.note(smoothness=rough.detach().mean(), penalty=(alike + rough).detach().mean())
        return self.similarity * alike + self.smoothness * rough

    def _moved_gradients(self, step: Step, still: int) -> Tensor:
        """Members' gradients, with graph, where the second half of the batch has been moved to."""
        ball = self.ball(step.number) if callable(self.ball) else self.ball
        (slot,) = step.slots(WatchedInput())
        clean, targets = slot.value[still:].detach(), step.targets[still:]
        inputs = tree_map(lambda x: x[still:] if isinstance(x, Tensor) else x, step.inputs)

        def gradients_at(shift: Tensor) -> Tensor:
            one = Pass(step.model, (WatchedInput(),), {WatchedInput(): [shift]}, devices=step.devices)
            step.forward_passes += 1
            return input_gradients(members_of(one.run(inputs)), targets, shift)

        with torch.enable_grad():
            shift = ball.interior(torch.zeros_like(clean), around=clean)
            for _ in range(self.steps):
                shift = shift.detach().requires_grad_()
                (slope,) = torch.autograd.grad(magnitude(gradients_at(shift)).sum(), shift)
                step.backward_passes += 2
                shift = ball.project(shift.detach() + ball.radius / 3 * ball.steepest(slope), around=clean)
            return gradients_at(shift.detach().requires_grad_())
