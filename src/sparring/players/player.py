"""What every player has in common: the game it is shown, and the response it gives."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from ..balls import Ball
from ..sites.site import Slot

Unroll = Literal[False, "autograd", "finite_difference"]


class Payoff(Protocol):
    """Runs one perturbed pass; returns what the term charges for it, per example (B,)."""

    def __call__(self, values: Sequence[Tensor], attached: bool = False, clean: Tensor | None = None) -> Tensor: ...


class Apart(Protocol):
    """A payoff that can be computed again later: from leaves in place of everything that had a graph before its pass.

    Attributes:
        attached: those tensors, as the leader sees them.
    """

    attached: list[Tensor]

    def payoff(self, values: Sequence[Tensor], leaves: Sequence[Tensor]) -> Tensor: ...
    def unchanged(self) -> None: ...


def _nothing_to_check() -> None:
    pass


@dataclass
class Game:
    """What a player sees: the slots it may perturb and the payoff it wants to raise.

    Attributes:
        slots: what stood at the site in the clean pass, detached, one slot per firing.
        payoff: values, one per slot -> (B,); differentiable in the values, and in the parameters only if `attached`. With
            `clean=` those outputs are compared with instead, and the whole model runs (no prefix replay).
        clean: clean outputs, detached.
        attached_clean: clean outputs as the leader sees them (with their graph unless the term detaches them).
        parameters: what the leader trains, for finite differences; else empty.
        batch: number of examples.
        labelled: how many of them, the first ones, have labels; None for all.
        unchanged: raises where the model is no longer what it was; for players that run it again during backward.
        apart: makes a payoff that can be computed again during backward; None where there is none.
        sharded: each process holds a part of the parameters only: a gradient in them comes with the leader's backward pass alone.
        meet: examples meet in the model, in a batch norm that takes the statistics of its batch.
        precise_clean: under autocast, runs the clean pass again in full precision and returns its outputs with their graph.
    """

    slots: list[Slot]
    payoff: Payoff
    clean: Tensor
    attached_clean: Tensor
    parameters: list[Tensor]
    batch: int
    unchanged: Callable[[], None] = _nothing_to_check
    labelled: int | None = None
    precise_clean: Callable[[], Tensor] | None = None
    apart: Callable[[], Apart] | None = None
    sharded: bool = False
    meet: bool = False


@dataclass
class Response:
    """What a player answers.

    Attributes:
        values: one perturbation (or mask) per slot.
        unperturbed: (B,) True where the gradient vanished or was not finite, so the example was left alone; or a function that
            says so when somebody asks.
        notes: extra diagnostics.
        backward_passes: how many gradients were taken.
        interaction: from the charge at the answer (B,) to what is added to it, zeros whose gradient is the derivative through the
            answer; for players that cannot hand it on by themselves.
    """

    values: list[Tensor]
    unperturbed: Tensor | Callable[[], Tensor] | None = None
    notes: dict[str, Any] = field(default_factory=dict)
    backward_passes: int = 0
    interaction: Callable[[Tensor], Tensor] | None = None


class Player(ABC):
    """A way to choose a perturbation. A player of your own writes `respond`, and of the rest what differs.

    Attributes:
        kinds: at which kinds of site it can play: "additive", "mask", or both.
        bound: the ball that binds it, for diagnostics; None without one.
        idle: it cannot move at all (radius 0), and the term is left out.
        starts_at_clean: its first gradient is taken at the clean point, where a divergence has no slope.
        unroll: how the leader differentiates through the answer: False, "autograd" or "finite_difference".
        draws: the answer comes from `draw` alone, without a look at the model: random noise and random masks.
    """

    kinds: frozenset[str] = frozenset({"additive"})
    starts_at_clean: bool = False
    unroll: Unroll = False
    draws: bool = False

    @property
    def bound(self) -> Ball | None:
        return None

    @property
    def idle(self) -> bool:
        return self.bound is not None and self.bound.radius == 0

    @abstractmethod
    def respond(self, game: Game) -> Response:
        """Choose one perturbation (or mask) per slot of the game."""

    def draw(self, slot: Slot) -> Tensor:
        """A random answer for one slot; only players with `draws` have one."""
        raise TypeError(f"{type(self).__name__} looks at the model before it answers")


class InBall(Player):
    """A player at additive sites that stays inside its `ball`."""

    ball: Ball

    @property
    def bound(self) -> Ball:
        return self.ball


class Random(Player):
    """A player that does not look at the model: one of your own writes `draw(slot)`, and `respond` follows."""

    draws = True

    def respond(self, game: Game) -> Response:
        return Response([self.draw(slot) for slot in game.slots])


def slope(
    payoff: Tensor, values: Sequence[Tensor], create_graph: bool = False, retain_graph: bool | None = None
) -> list[Tensor]:
    """Gradient of the *summed* payoff in the values, so that batch size and reduction never change the player.

    Raises an error that names the fix where a model cannot be differentiated this way.
    """
    if not payoff.requires_grad:
        raise RuntimeError(_NO_EFFECT)
    device = payoff.device.type
    if torch.is_autocast_enabled(device):  # backward must not run under autocast: it would round products of its own
        with torch.autocast(device, enabled=False):
            return slope(payoff, values, create_graph, retain_graph)
    try:
        # A sum costs less than ones to start from; inside a backward pass it would have no graph.
        total, ones = (payoff.sum(), None) if torch.is_grad_enabled() else (payoff, torch.ones_like(payoff))
        gradients = torch.autograd.grad(total, values, ones, retain_graph, create_graph, allow_unused=True)
    except RuntimeError as error:
        raise _explained(error) from error
    found = [g for g in gradients if g is not None]
    if not found:
        raise RuntimeError(_NO_EFFECT)
    if len(found) == len(values):
        return found
    return [torch.zeros_like(v) if g is None else g for v, g in zip(values, gradients, strict=True)]


_NO_EFFECT = (
    "the outputs do not depend on what is placed at the site: the module's result is unused or detached, or it runs under "
    "re-entrant gradient checkpointing (pass use_reentrant=False)"
)


def _explained(error: RuntimeError) -> RuntimeError:
    text = str(error)
    if "Checkpointing is not compatible" in text or "reentrant" in text.lower():
        return RuntimeError("players need gradient checkpointing with use_reentrant=False")
    if "double backward" in text or "is not implemented" in text or "aot_autograd" in text or "derivative for" in text:
        return RuntimeError(
            'unroll="autograd" differentiates twice, which this model does not support (compiled modules and some fused kernels '
            f'do not): use unroll="finite_difference", or the module before torch.compile. torch says: {text.splitlines()[0]}'
        )
    return error


def lost(gradients: Sequence[Tensor], slots: Sequence[Slot], before: Tensor | None = None) -> Tensor:
    """(B,) True where an example's gradient, over all slots, is all zero or not finite, now or `before`: it is left alone."""
    now = vanished(gradients, [slot.valid for slot in slots])
    return now if before is None else before | now


def vanished(gradients: Sequence[Tensor], valid: Sequence[Tensor | None]) -> Tensor:
    """(B,) True where an example's gradient, over all slots and their valid positions, is all zero or not finite."""
    total: Tensor | None = None
    for gradient, mask in zip(gradients, valid, strict=True):
        flat = gradient.detach() if mask is None else torch.where(mask, gradient.detach(), 0.0)
        peak = flat.abs()
        if flat.dim() > 1:
            peak = peak.amax(tuple(range(1, flat.dim())))  # a NaN or infinite entry is the peak
        total = peak if total is None else total + peak
    assert total is not None
    return (total / total).isnan()  # of zero, infinity and NaN alone


def without(left_out: Tensor, value: Tensor) -> Tensor:
    """`value` with exact zeros where the example is left out (B,); what the batch shares (1, ...) goes if all are."""
    if len(value) == 1 and len(left_out) > 1:
        left_out = left_out.all().view(1)
    return value.masked_fill(left_out.view((-1,) + (1,) * (value.dim() - 1)), 0.0)


def working_copy(slot: Slot) -> Tensor:
    """Zeros like the slot's value, in float32 at least: players compute in full precision under autocast."""
    dtype = slot.value.dtype if slot.value.dtype in (torch.float32, torch.float64) else torch.float32
    return torch.zeros(slot.value.shape, dtype=dtype, device=slot.value.device)
