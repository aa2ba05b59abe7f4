"""How long an unrolled player's interaction term is, against the leader's own gradient (Zuo et al. 2021, eq. 4)."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..late import ask
from ..passes.replay import is_compiled
from ..passes.step import Step

# Training steps at which players are looked at: measuring costs backward passes.
LOOKS = (1, 10, 100)
GATES = "interaction gates"  # where a step keeps them


@dataclass
class Gate:
    """Stands between the player's answer and the leader's pass: shut, it keeps the leader's pull and lets none of it through.

    Attributes:
        name: of the term, for the warning.
        answer: what the player placed, with its graph.
        pulls: the leader's gradient in what was placed, kept while the gate was shut.
        own: squared length of the objective's gradient in the parameters, with every player's answer held constant.
        more: squared length of what the derivative through this player's answer adds to it.
    """

    name: str
    answer: Sequence[Tensor]
    shut: bool = False
    pulls: Sequence[Tensor] = field(default_factory=tuple)
    own: Tensor | float = 1.0
    more: Tensor | float = float("nan")

    def ratio(self) -> float:
        """Length of the interaction over the length of the leader's own gradient; asked when somebody reads the diagnostics."""
        return (float(self.more) / max(float(self.own), 1e-38)) ** 0.5


class _Through(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Gate, *values: Tensor) -> tuple[Tensor, ...]:
        ctx.gate = gate
        return tuple(value.view_as(value) for value in values)

    @staticmethod
    def backward(ctx: Any, *pulls: Tensor) -> tuple[Any, ...]:
        if not ctx.gate.shut:
            return (None, *pulls)
        ctx.gate.pulls = pulls
        return (None, *(None for _ in pulls))


def gated(step: Step, values: list[Tensor]) -> list[Tensor]:
    """The answer behind a gate, in a step that measures the interaction; the answer itself in all others."""
    asked = step.cache.get("measure_interaction")
    if not (asked or step.number in LOOKS) or not torch.is_grad_enabled() or not all(v.requires_grad for v in values):
        return values
    if any(is_compiled(module) or hasattr(module, "reshard") for module in step.model.modules()):
        if not asked:
            return values
        raise ValueError(
            "measure_interaction_every: parts of the model are compiled or sharded, and those go backward once only; leave it out"
        )
    gate = Gate(step.speaker, values)
    step.cache.setdefault(GATES, []).append(gate)
    step.note(interaction=gate.ratio)
    return list(_Through.apply(gate, *values))


def measure(step: Step, total: Tensor, quiet: bool = False) -> bool:
    """Fill the gates of a step: one backward pass for the leader's own gradient, and for each gate one through its player.

    Warns, unless it should be quiet, where an interaction is longer than the gradient that it corrects, or none at all; returns
    whether it did.
    """
    gates: list[Gate] = step.cache.get(GATES, [])
    if not gates:
        return False
    parameters = [p for p in step.model.parameters() if p.requires_grad]
    placed = step.last  # finite differences run the model again, and are not the leader's pass
    with torch.autocast(total.device.type, enabled=False):
        for gate in gates:
            gate.shut = True
        try:
            own = _squared_length([total], parameters, None)
        finally:
            for gate in gates:
                gate.shut = False
        for gate in gates:
            gate.own, gate.more = own, _squared_length(gate.answer, parameters, gate.pulls)
            gate.answer = gate.pulls = ()
    step.last = placed
    step.backward_passes += 1 + len(gates)
    return not quiet and step.number in LOOKS and _warn(gates, step.number == LOOKS[-1])


def _squared_length(values: Sequence[Tensor], parameters: Sequence[Tensor], pulls: Sequence[Tensor] | None) -> Tensor:
    found = torch.autograd.grad(values, parameters, pulls, retain_graph=True, allow_unused=True)
    squares = [g.detach().float().square().sum() for g in found if g is not None]
    return torch.stack(squares).sum() if squares else torch.zeros(())


def _warn(gates: Sequence[Gate], trained: bool) -> bool:
    """Whether one was found too long or, in a network that is `trained` a little, without any effect.

    A new network may answer nearly the same to everything; on an accelerator all is said later.
    """
    said: list[str] = []

    def say(gate: Gate) -> None:
        if said:
            return
        said.append(gate.name)
        if not gate.more:
            found = (
                "the derivative through the opponent's ascent is exactly 0, so that unrolling costs passes and changes nothing: "
                'its steps are signs, or start where there is no slope but rounding. Use a larger start=, or update="normalised"'
            )
        else:
            found = (
                f"the interaction term is {gate.ratio():.3g} times as long as the gradient of the objective itself: the "
                "model follows its opponent's answer more than its losses. Use interaction=0.1, or a larger start="
            )
        warnings.warn(f"{gate.name}: {found}", stacklevel=10)

    for gate in gates:
        more = torch.as_tensor(gate.more)
        found = more > gate.own
        if trained:
            found = found | ((more == 0) & (torch.as_tensor(gate.own) > 0))
        ask(found, partial(say, gate))
    return bool(said)
