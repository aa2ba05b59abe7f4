"""The loss at adversarial inputs under adversarial weights."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..nn.randomness import fresh
from ..passes.step import Step
from ..players.player import Game, Player
from ..sites.site import Site
from ..sites.weights import Weights
from .playable import Playable, Weight, at_step
from .term import Term


@dataclass(frozen=True)
class WeightPerturbation(Playable):
    """First the inputs move, then the weights, and the loss there is charged instead of the clean one.

    Args:
        at: where the inputs are perturbed.
        by: by whom; None leaves them alone.
        weights: which weights.
        weights_by: the player there; its radius is relative to each layer's norm.
        weight: of the loss.
        share_noise: same dropout in all passes.
        name: how diagnostics call the term.

    Paper: Wu, Xia and Wang (2020), eq. 7-10 and Algorithm 1.
    """

    at: Site
    by: Player | None
    weights: Weights
    weights_by: Player
    weight: Weight = 1.0
    share_noise: bool = True
    name: str = "adversarial_weight_perturbation"

    replaces = 1.0

    @property
    def sites(self) -> tuple[Site, ...]:  # type: ignore[override]
        return (self.weights,) if self.by is None else (self.at, self.weights)

    @property
    def idle(self) -> bool:  # type: ignore[override]
        return self.weight == 0 or ((self.by is None or self.by.idle) and self.weights_by.idle)

    def play(self, step: Step) -> Tensor | None:
        weight = at_step(self.weight, step.number)
        if weight == 0:
            return None
        noise = step.noise if self.share_noise else fresh(step.devices, outside=True)
        placed: dict[Site, list[Tensor]] = {}
        if self.by is not None:
            inner = Term(self.at, self.by, name=self.name)
            placed[self.at] = [v.detach() for v in inner.respond(step, noise, step.outputs).values]

        def payoff(values: Sequence[Tensor], attached: bool = False, clean: Tensor | None = None) -> Tensor:
            everything = {**placed, self.weights: list(values)}
            return step.loss(step.run(everything, graph="attached" if attached else "detached", noise=noise))

        slots = [slot.bare() for slot in step.slots(self.weights)]
        clean = step.outputs.detach()
        with torch.enable_grad():
            response = self.weights_by.respond(Game(slots, payoff, clean, clean, [], step.batch))
        step.backward_passes += response.backward_passes
        charge = step.loss(step.run({**placed, self.weights: response.values}, noise=noise))
        step.note(penalty=step.average(charge.detach()), weight=weight)
        return charge if weight == 1 else weight * charge
