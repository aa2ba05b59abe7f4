"""Exact unrolling in the memory of one step: the earlier steps of an ascent run again when the leader's pull reaches them."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..sites.site import Slot
from .attention_kernel import math_attention
from .player import Apart, lost, slope
from .walk import Follower, State, regroup

Advance = Callable[[State, Sequence[Tensor], Sequence[Slot], int], State]


@dataclass
class Unrolled:
    """The first steps of an ascent, as one function of the parameters whose derivative takes them again one by one.

    Nothing of the model is kept between forward and backward: of each step only the perturbation it started from. In backward,
    step k is taken again from there with its graph, the pull on its result goes through it, and the graph is dropped before
    step k - 1. Noise, statistics and precision are those of the first time.
    """

    apart: Apart
    slots: Sequence[Slot]
    advance: Advance
    history: list[State] = field(default_factory=list)
    _closed_over: list[Tensor] = field(default_factory=list)
    _modes: list[torch.autocast] = field(default_factory=list)

    def ascend(self, state: State, steps: int) -> tuple[State, Tensor | None]:
        """Take `steps` steps: the state after them, which hangs on all that the payoff depends on, and who was left alone."""
        self._modes = _autocasts(state.deltas[0].device)
        unperturbed: Tensor | None = None
        for step in range(1, steps + 1):
            self.history.append(state)
            points = [d.detach().requires_grad_() for d in state.deltas]
            leaves = _leaves(self.apart.attached)
            with math_attention():  # as when it runs again: another kernel may draw other dropout
                payoff = self.apart.payoff(points, leaves)
            if step == 1:
                self._closed_over = _variables(payoff, but=[*points, *leaves])
            gradients = slope(payoff, points)
            unperturbed = lost(gradients, self.slots, unperturbed)
            state = self.advance(state._replace(deltas=tuple(points)), gradients, self.slots, step).map(Tensor.detach)
        final = state.flat()
        flat = Follower.apply(self, len(final), *final, *self.apart.attached, *self._closed_over)
        return State(*regroup(flat, state)), unperturbed

    def back(self, pulls: Sequence[Tensor]) -> list[Tensor | None]:
        """Carry the pull on the state after the last step back to what was attached and to the parameters."""
        self.apart.unchanged()
        total: list[Tensor | None] = [None] * (len(self.apart.attached) + len(self._closed_over))
        for step in range(len(self.history), 0, -1):
            before = self.history[step - 1].map(lambda t: t.detach().requires_grad_())
            leaves = _leaves(self.apart.attached)
            with ExitStack() as stack, torch.enable_grad(), math_attention():
                for mode in self._modes:
                    stack.enter_context(mode)
                gradients = slope(self.apart.payoff(before.deltas, leaves), before.deltas, create_graph=True)
                after = self.advance(before, gradients, self.slots, step).flat()
            wanted = [*before.flat(), *leaves, *self._closed_over]
            live = [(a, p) for a, p in zip(after, pulls, strict=True) if a.requires_grad]
            found = torch.autograd.grad([a for a, _ in live], wanted, [p for _, p in live], allow_unused=True)
            size = len(before.flat())
            pulls = [torch.zeros_like(b) if f is None else f for b, f in zip(before.flat(), found, strict=False)]
            for i, change in enumerate(found[size:]):
                total[i] = _sum(total[i], change)
            del gradients, after, live, found, wanted
        return total


def _sum(old: Tensor | None, change: Tensor | None) -> Tensor | None:
    if old is None or change is None:
        return change if old is None else old
    return old + change


def _leaves(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [t.detach().requires_grad_() for t in tensors]


def _variables(payoff: Tensor, but: Sequence[Tensor]) -> list[Tensor]:
    """Every leaf of the payoff's graph: the parameters it uses, and whatever else the model, loss or penalty closes over."""
    found: dict[int, Tensor] = {}
    known, seen, waiting = set(map(id, but)), set[Any](), [payoff.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None and id(variable) not in known:
            found[id(variable)] = variable
        waiting.extend(following for following, _ in node.next_functions)
    return list(found.values())


def _autocasts(device: torch.device) -> list[torch.autocast]:
    """The autocast modes of now, to be entered again."""
    kinds = dict.fromkeys(("cpu", device.type))
    return [torch.autocast(k, torch.get_autocast_dtype(k), torch.is_autocast_enabled(k)) for k in kinds]
