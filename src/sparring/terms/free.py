"""The "free" methods: ascent on the perturbation and descent on the parameters share their backward passes."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..objective import Objective, Term
from ..passes import randomness
from ..passes.step import Step, ValidMask
from ..players.pgd import PGD
from ..players.player import only, slope, sound
from ..players.walk import State
from ..sites.site import Slot


class FreeLB(Objective):
    """The average loss over the K points of one ascent (Zhu et al. 2020, Algorithm 1).

    With `penalty=None` the loss is the supervised one at delta^0 .. delta^(K-1): `steps` yields the K losses, each divided by K, and
    takes the ascent's gradient from the very backward pass that the training loop runs. With a penalty it is the regulariser
    CE + weight / K * sum_k penalty(delta^k), in one loss. The dropout masks are the same in every pass.
    """

    def __init__(self, model: nn.Module, loss: Callable[..., Tensor], term: Term, **options: Any) -> None:
        super().__init__(model, loss, term, **options)
        if not isinstance(term.by, PGD) or term.at is None:
            raise TypeError("FreeLB ascends by PGD at a site")
        self.term, self.player, self.site = term, term.by, term.at

    def forward(self, inputs: Any, targets: Any = None, valid: ValidMask = None) -> Tensor:
        terms = self._active(targets)
        if not terms:
            return super().forward(inputs, targets, valid)
        step = self.begin(inputs, targets, valid, terms)
        if self.term.penalty is not None:
            step.begin()
        total: Tensor | None = None
        for charge in self._trajectory(step):
            total = charge if total is None else total + charge
        assert total is not None
        if step.losses is not None:
            total = total + step.losses.mean()
        self._finish(step, total)
        return total

    def steps(self, inputs: Any, targets: Any = None, valid: ValidMask = None) -> Iterator[Tensor]:
        terms = self._active(targets)
        if not terms or self.term.penalty is not None:
            yield self(inputs, targets, valid)
            return
        step = self.begin(inputs, targets, valid, terms)
        yield from self._trajectory(step, outside=True)
        self._finish(step, step.notes["mean_loss"])

    def _trajectory(self, step: Step, outside: bool = False) -> Iterator[Tensor]:
        """Charges of the K points, each divided by K. `outside`: the caller back-propagates each before asking for the next."""
        player, noise = self.player, step.noise or randomness.fresh(step.devices)
        trains = torch.is_grad_enabled()
        outside = outside and trains
        compare = self.term.penalty is not None
        points: list[Tensor] = []
        slots: list[Slot] = []
        mean: Tensor | float = 0.0

        def first(slot: Slot) -> Tensor:
            start = player.first_move(Slot(slot.name, slot.value.detach(), slot.valid)).requires_grad_()
            points.append(start)
            slots.append(Slot(slot.name, slot.value.detach(), slot.valid))
            return start

        for k in range(player.steps):
            placement: Any = points if points else first
            with torch.enable_grad():  # the ascent needs gradients where the loss is only measured, too
                outputs = step.run({self.site: placement}, noise=noise, moves_statistics=k == 0 and not compare)
                clean = step.outputs if compare else None
                charge = self.term.settle(step, clean, outputs, self.term.at_step(step.number))
            grads = Captured(points) if outside else None
            mean = mean + charge.detach().mean() / player.steps
            step.notes["mean_loss"] = mean
            yield (charge if trains else charge.detach()).mean() / player.steps
            if k < player.steps - 1:
                gradients = grads.take() if grads else slope(charge, points, retain_graph=True)
                step.backward_passes += 0 if outside else 1
                good = sound(gradients, slots)
                state = player.advance(State(tuple(p.detach() for p in points)), gradients, slots, k + 1)
                points = [only(good, d.detach()).requires_grad_() for d in state.deltas]


class Captured:
    """The gradients that somebody else's backward pass brings to our own leaves."""

    def __init__(self, leaves: Sequence[Tensor]) -> None:
        self.found: list[Tensor | None] = [None] * len(leaves)
        self.leaves = leaves
        for index, leaf in enumerate(leaves):
            leaf.register_hook(self._keep(index))

    def _keep(self, index: int) -> Callable[[Tensor], None]:
        def keep(gradient: Tensor) -> None:
            seen = self.found[index]
            self.found[index] = gradient.detach() if seen is None else seen + gradient.detach()

        return keep

    def take(self) -> list[Tensor]:
        """What arrived; zeros where nothing did (the caller did not back-propagate)."""
        return [torch.zeros_like(leaf) if g is None else g for leaf, g in zip(self.leaves, self.found, strict=True)]


class FreeAT(Objective):
    """Free adversarial training (Shafahi et al. 2019): each batch is replayed K times, with a parameter update after every replay.

    Each loss is the supervised one at the carried perturbation; its backward pass also brings the gradient for the next ascent
    step. The perturbation is carried over between replays and, while shapes agree, between batches. A training loop updates the
    parameters after every loss that `steps` yields (`update_each_loss` is True).
    """

    update_each_loss = True

    def __init__(self, model: nn.Module, loss: Callable[..., Tensor], term: Term, **options: Any) -> None:
        super().__init__(model, loss, term, **options)
        if not isinstance(term.by, PGD) or term.at is None:
            raise TypeError("FreeAT ascends by PGD at a site")
        self.term, self.player, self.site = term, term.by, term.at
        self.carried: list[Tensor] = []
        self._captured: Captured | None = None
        self._slots: list[Slot] = []

    def steps(self, inputs: Any, targets: Any = None, valid: ValidMask = None) -> Iterator[Tensor]:
        for _ in range(self.player.steps if self._active(targets) else 1):
            yield self(inputs, targets, valid)
            self.ascend()

    def forward(self, inputs: Any, targets: Any = None, valid: ValidMask = None) -> Tensor:
        terms = self._active(targets)
        if not terms:
            return super().forward(inputs, targets, valid)
        self.ascend()
        step = self.begin(inputs, targets, valid, terms)
        leaves: list[Tensor] = []
        slots: list[Slot] = []

        def place(slot: Slot) -> Tensor:
            old = self.carried[len(leaves)] if len(leaves) < len(self.carried) else None
            fits = old is not None and old.shape == slot.value.shape
            bare = Slot(slot.name, slot.value.detach(), slot.valid)
            start = self.player.first_move(bare) if old is None or not fits else self._inside(old, bare)
            leaves.append(start.detach().requires_grad_())
            slots.append(bare)
            return leaves[-1]

        outputs = step.run({self.site: place}, noise=None, moves_statistics=True)
        total = self.term.settle(step, None, outputs, self.term.at_step(step.number)).mean()
        if total.requires_grad:
            self._captured = Captured(leaves)
        self.carried, self._slots = [leaf.detach() for leaf in leaves], slots
        self._finish(step, total)
        return total

    def _inside(self, carried: Tensor, slot: Slot) -> Tensor:
        """The perturbation of the last batch, fit for this one: its padding and its clean values are others."""
        return self.player.ball.project(carried, slot.valid, around=slot.value)

    def ascend(self) -> None:
        """Move the carried perturbation along the gradient that the last backward pass left."""
        if self._captured is None:
            return
        gradients = self._captured.take()
        self._captured = None
        good = sound(gradients, self._slots)
        state = self.player.advance(State(tuple(self.carried)), gradients, self._slots, 1)
        self.carried = [torch.where(_rows(good, d), d, old) for d, old in zip(state.deltas, self.carried, strict=True)]

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        self.ascend()
        for index, tensor in enumerate(self.carried):
            destination[f"{prefix}carried.{index}"] = tensor

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any, **kwargs: Any) -> None:
        keys = sorted(
            (k for k in state_dict if k.startswith(f"{prefix}carried.")), key=lambda k: int(k.rpartition(".")[2])
        )
        self.carried = [state_dict.pop(key).clone() for key in keys]
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def _rows(good: Tensor, like: Tensor) -> Tensor:
    return good.view(-1, *(1,) * (like.dim() - 1))
