"""The "free" methods: ascent on the perturbation and descent on the parameters share their backward passes."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..nn.randomness import fresh
from ..passes.step import Step
from ..players.pgd import PGD
from ..players.player import lost, slope, without
from ..players.walk import State
from ..sites.site import Site, Slot
from .playable import Leading, at_step
from .term import Term

ALONE = "it shares its backward passes with the training loop, which another term would change"


def _parts(term: Term, name: str) -> tuple[PGD, Site]:
    if not isinstance(term.by, PGD) or term.at is None:
        raise TypeError(f"{name} ascends by PGD at a site")
    return term.by, term.at


class FreeLB(Leading):
    """The average loss over the K points of one ascent (Zhu et al. 2020, Algorithm 1).

    With `penalty=None` the loss is the supervised one at delta^0 .. delta^(K-1): a training step has K losses, each divided by K, and
    the ascent's gradient comes from the very backward pass that the training loop runs. With a penalty it is the regulariser
    CE + weight / K * sum_k penalty(delta^k), in one loss. The dropout masks are the same in every pass.

    Args:
        term: where, by which ascent, and what is charged.
    """

    alone = ALONE

    def __init__(self, term: Term) -> None:
        self.term, self.name = term, term.name
        self.by, self.site = _parts(term, "FreeLB")
        self._walk: Iterator[Tensor] | None = None
        self._step: Step | None = None

    @property
    def sites(self) -> tuple[Site, ...]:  # type: ignore[override]
        return (self.site,)

    @property
    def idle(self) -> bool:  # type: ignore[override]
        return self.term.idle

    @property
    def label_free(self) -> bool:  # type: ignore[override]
        return self.term.label_free

    @property
    def parts(self) -> int:  # type: ignore[override]
        return self.by.steps if self.term.penalty is None else 1

    def lead(self, begin: Callable[[], Step], part: int | None) -> tuple[Tensor, Step]:
        if part is None or self.parts == 1:
            return self._at_once(begin())
        if part == 0 or self._walk is None:
            self._step = begin()
            self._walk = self._trajectory(self._step, outside=True)
        assert self._step is not None
        loss, step = next(self._walk), self._step
        if part == self.parts - 1:
            self._walk = self._step = None
        return loss, step

    def _at_once(self, step: Step) -> tuple[Tensor, Step]:
        if self.term.penalty is not None:
            step.begin()
        total: Tensor | None = None
        for charge in self._trajectory(step):
            total = charge if total is None else total + charge
        assert total is not None
        clean = step.clean_loss()
        if clean is not None:
            total = total + clean
        return total, step

    def _trajectory(self, step: Step, outside: bool = False) -> Iterator[Tensor]:
        """Charges of the K points, each divided by K. `outside`: the caller back-propagates each before asking for the next."""
        player, noise = self.by, step.noise or fresh(step.devices, outside=True)
        trains = torch.is_grad_enabled()
        outside = outside and trains
        compare = self.term.penalty is not None
        state = State(())
        slots: list[Slot] = []
        mean: Tensor | float = 0.0

        def first(slot: Slot) -> Tensor:
            slots.append(slot.bare())
            points.append(player.first_move(slots[-1]).requires_grad_())
            return points[-1]

        points: list[Tensor] = []
        for k in range(player.steps):
            placement: Any = points if points else first
            with torch.enable_grad():  # the ascent needs gradients where the loss is only measured, too
                run = step.run_first if k == 0 and not compare else step.run
                outputs = run({self.site: placement}, noise=noise)
                clean = self.term.reference(step) if compare else None
                charge = self.term.settle(step, clean, outputs, at_step(self.term.weight, step.number))
            grads = Captured(points, charge) if outside else None
            share = step.average(charge, outputs) / player.steps
            mean = mean + share.detach()
            step.notes["mean_loss"] = mean
            yield share if trains else share.detach()
            if k < player.steps - 1:
                gradients = grads.take() if grads else slope(charge, points, retain_graph=True)
                step.backward_passes += 1  # the caller's, or the slope just taken
                unperturbed = lost(gradients, slots)
                state = state._replace(deltas=tuple(p.detach() for p in points))
                state = player.advance(state, gradients, slots, k + 1).map(Tensor.detach)
                points = [without(unperturbed, d).requires_grad_() for d in state.deltas]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_walk": None, "_step": None}


class Captured:
    """The gradients that somebody else's backward pass brings to our own leaves: those of the summed charge.

    What a training loop makes of a loss, and how many examples share it, is no business of the follower: each example's gradient
    is divided by the factor that reached its charge.

    Args:
        leaves: the perturbations, one row per example.
        charge: what each example is charged, (B,).
    """

    def __init__(self, leaves: Sequence[Tensor], charge: Tensor) -> None:
        self.found: list[Tensor | None] = [None] * (len(leaves) + 1)
        self.leaves = leaves
        for index, tensor in enumerate((*leaves, charge)):
            if tensor.requires_grad:
                tensor.register_hook(self._keep(index))

    def _keep(self, index: int) -> Callable[[Tensor], None]:
        def keep(gradient: Tensor) -> None:
            seen = self.found[index]
            self.found[index] = gradient.detach() if seen is None else seen + gradient.detach()

        return keep

    def take(self) -> list[Tensor]:
        """What arrived; zeros where nothing did (the caller did not back-propagate)."""
        *found, factors = self.found
        if factors is None:
            return [torch.zeros_like(leaf) for leaf in self.leaves]
        return [
            torch.zeros_like(leaf) if g is None else g / _fitted(factors, leaf)
            for leaf, g in zip(self.leaves, found, strict=True)
        ]


class FreeAT(nn.Module, Leading):
    """Free adversarial training (Shafahi et al. 2019): each batch is replayed K times, with a parameter update after every replay.

    Each loss is the supervised one at the carried perturbation; its backward pass also brings the gradient for the next ascent
    step. The perturbation (and an Adam follower's moments) is carried over between replays and, while shapes agree, between
    batches. A training loop updates the parameters after every loss.

    Args:
        term: where, by which ascent, and with which weight.
    """

    alone = ALONE
    update_each_loss = True

    def __init__(self, term: Term) -> None:
        super().__init__()
        self.term, self.name = term, term.name
        self.by, self.site = _parts(term, "FreeAT")
        self.carried = State(())
        self.moves = 0
        self._captured: Captured | None = None
        self._slots: list[Slot] = []

    @property
    def sites(self) -> tuple[Site, ...]:  # type: ignore[override]
        return (self.site,)

    @property
    def idle(self) -> bool:  # type: ignore[override]
        return self.term.idle

    @property
    def parts(self) -> int:  # type: ignore[override]
        return self.by.steps

    def lead(self, begin: Callable[[], Step], part: int | None) -> tuple[Tensor, Step]:
        self.ascend()
        step = begin()
        leaves: list[Tensor] = []
        slots: list[Slot] = []

        def place(slot: Slot) -> Tensor:
            index, bare = len(leaves), slot.bare()
            old = self.carried.deltas[index] if index < len(self.carried.deltas) else None
            fits = old is not None and old.shape == slot.value.shape
            if fits and old is not None:
                start = self.by.ball.project(old, bare.valid, around=bare.value)
            else:
                start, self.carried, self.moves = self.by.first_move(bare), State(()), 0
            leaves.append(start.detach().requires_grad_())
            slots.append(bare)
            return leaves[-1]

        outputs = step.run({self.site: place}, noise=None, moves_statistics=True)
        charge = self.term.settle(step, None, outputs, at_step(self.term.weight, step.number))
        total = step.average(charge, outputs)
        if total.requires_grad:
            self._captured = Captured(leaves, charge)
        self.carried = self.carried._replace(deltas=tuple(leaf.detach() for leaf in leaves))
        self._slots = slots
        return total, step

    def ascend(self) -> None:
        """Move the carried perturbation along the gradient that the last backward pass left."""
        if self._captured is None:
            return
        gradients = self._captured.take()
        self._captured = None
        left = lost(gradients, self._slots)
        old, self.moves = self.carried, self.moves + 1
        state = self.by.advance(old, gradients, self._slots, self.moves).map(Tensor.detach)
        deltas = tuple(torch.where(_rows(left, d), o, d) for d, o in zip(state.deltas, old.deltas, strict=True))
        self.carried = state._replace(deltas=deltas)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        self.ascend()
        for part, tensors in self.carried._asdict().items():
            for index, tensor in enumerate(tensors):
                destination[f"{prefix}carried.{part}.{index}"] = tensor
        if self.carried.deltas:
            destination[f"{prefix}moves"] = torch.tensor(self.moves)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any, **kwargs: Any) -> None:
        self.moves = int(state_dict.pop(f"{prefix}moves", 0))
        parts = {}
        for part in State._fields:
            start = f"{prefix}carried.{part}."
            keys = sorted((k for k in state_dict if k.startswith(start)), key=lambda k: int(k.rpartition(".")[2]))
            parts[part] = tuple(state_dict.pop(key).clone() for key in keys)
        self.carried = State(**parts)
        self._captured, self._slots = None, []  # a gradient of the step before belongs to another perturbation
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def _fitted(factors: Tensor, leaf: Tensor) -> Tensor:
    """The factor of every row of a leaf; of one that all examples share, their mean. 1 where nothing counts: the gradient is zero."""
    if len(leaf) != len(factors):
        factors = (factors.sum() / (factors != 0).sum().clamp_min(1)).view(1)
    return _rows(torch.where(factors == 0, 1.0, factors), leaf)


def _rows(good: Tensor, like: Tensor) -> Tensor:
    return good.view(-1, *(1,) * (like.dim() - 1))
