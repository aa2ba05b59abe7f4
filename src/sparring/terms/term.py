"""A term: one perturbation of the network, and what is charged for it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from ..passes import randomness
from ..passes.step import Step
from ..penalties import Penalty
from ..players.player import Game, Player, Response
from ..sites.site import Site, Slot

Weight = float | Callable[[int], float]


@runtime_checkable
class Playable(Protocol):
    """What an objective asks of a term; `Term` is the usual one."""

    @property
    def name(self) -> str: ...
    @property
    def sites(self) -> tuple[Site, ...]: ...
    @property
    def idle(self) -> bool: ...
    @property
    def label_free(self) -> bool: ...
    def play(self, step: Step) -> Tensor | None: ...


@dataclass(frozen=True)
class Term:
    """One perturbation and what is charged for it: where, by whom, how much.

    >>> import sparring as sp
    >>> term = sp.Term(at=sp.Output("embedding"), by=sp.PGD(sp.L2(1.0)), penalty=sp.kl, weight=0.5)
    >>> term.name
    'PGD@embedding'

    Args:
        at: the site, or None for a second pass in which only the noise changes (R-Drop).
        by: the player; None goes with `at=None`.
        penalty: compares clean and perturbed outputs; None charges the supervised loss at the perturbed point.
        weight: factor of the penalty, or a function of the training step (ramp-ups).
        share_noise: the perturbed passes repeat the clean pass's random numbers (dropout); False draws fresh ones, the same for
            all passes of the term.
        detach_clean: no gradient through the clean side of the penalty.
        supervised: factor of the supervised loss at the perturbed point, on top of the penalty (fraternal dropout, R-Drop).
        name: how diagnostics call the term.
    """

    at: Site | None
    by: Player | None
    penalty: Penalty | None = None
    weight: Weight = 1.0
    share_noise: bool = True
    detach_clean: bool = False
    supervised: float = 0.0
    name: str = ""

    def __post_init__(self) -> None:
        if (self.at is None) != (self.by is None):
            raise ValueError(
                "Term(at, by): a site needs a player and a player needs a site; leave out both to compare noise only"
            )
        if self.at is not None and self.by is not None and self.at.kind not in self.by.kinds:
            raise ValueError(
                f"{type(self.by).__name__} plays at {' and '.join(sorted(self.by.kinds))} sites; "
                f"{self.at} is a site of kind {self.at.kind}"
            )
        if self.at is None and self.share_noise:
            raise ValueError("Term(at=None) compares two passes that differ in noise only: pass share_noise=False")
        if self.penalty is not None and self.share_noise and getattr(self.by, "starts_at_clean", False):
            raise ValueError(
                f"{self.by} starts at the clean point, where a divergence has no slope: start beside it (start=1e-5, xi=0.1)"
            )
        if not self.name:
            place = getattr(self.at, "glob", None) or type(self.at).__name__.lower()
            object.__setattr__(self, "name", "noise" if self.by is None else f"{type(self.by).__name__}@{place}")

    @property
    def sites(self) -> tuple[Site, ...]:
        return () if self.at is None else (self.at,)

    @property
    def idle(self) -> bool:
        return self.weight == 0 or (self.by is not None and self.by.idle)

    @property
    def label_free(self) -> bool:
        return self.penalty is not None

    @property
    def blind(self) -> bool:
        """Needs no clean pass: a random player and the supervised loss."""
        return self.penalty is None and self.at is not None and hasattr(self.by, "draw") and self.share_noise

    def at_step(self, number: int) -> float:
        """The weight at a training step."""
        return float(self.weight(number)) if callable(self.weight) else self.weight

    def play(self, step: Step) -> Tensor | None:
        """Let the player respond, run the perturbed pass, and charge for it: (B,), weighted."""
        weight = self.at_step(step.number)
        if weight == 0:
            return None
        noise = step.noise if self.share_noise else randomness.fresh(step.devices)
        reference = step.outputs.detach() if self.detach_clean else step.outputs

        def placed(values: Sequence[Tensor]) -> dict[Site, list[Tensor]]:
            return {} if self.at is None else {self.at: list(values)}

        def payoff(values: Sequence[Tensor], attached: bool = False, clean: Tensor | None = None) -> Tensor:
            outputs = step.run(
                placed(values), graph="attached" if attached else "detached", noise=noise, replay=clean is None
            )
            if clean is None:
                clean = reference if attached else reference.detach()
            return self._charge(step, clean, outputs)

        values: list[Tensor] = []
        if self.at is not None and self.by is not None:
            slots = [Slot(slot.name, slot.value.detach(), slot.valid) for slot in step.slots(self.at)]
            parameters: list[Tensor] = [p for p in step.model.parameters() if p.requires_grad]
            game = Game(slots, payoff, step.outputs.detach(), reference, parameters, step.batch)
            with torch.enable_grad():
                response = self.by.respond(game)
            values = response.values
            step.backward_passes += response.backward_passes
            self._note_player(step, game, response)
        outputs = step.run(placed(values), noise=noise)
        return self.settle(step, reference, outputs, weight)

    def settle(self, step: Step, clean: Tensor | None, outputs: Tensor, weight: float) -> Tensor:
        """What this term adds to the objective for given perturbed outputs, per example."""
        if self.penalty is None:
            charge = step.loss(outputs)
            total = (weight + self.supervised) * charge
        else:
            assert clean is not None
            charge = step.penalty(self.penalty, clean, outputs)
            total = weight * charge
            if self.supervised and step.targets is not None:
                total = total + self.supervised * step.loss(outputs)
        step.note(self.name, penalty=charge.detach().mean(), weight=weight)
        return total

    def _charge(self, step: Step, clean: Tensor, outputs: Tensor) -> Tensor:
        return step.loss(outputs) if self.penalty is None else step.penalty(self.penalty, clean, outputs)

    def _note_player(self, step: Step, game: Game, response: Response) -> None:
        step.note(self.name, **response.notes)
        if response.unperturbed is not None:
            step.note(self.name, unperturbed=response.unperturbed.sum())
        ball = getattr(self.by, "ball", None)
        if ball is None or not hasattr(ball, "norm"):
            return
        values = [v.detach() for v in response.values]
        norms = torch.stack([ball.norm(v, slot.valid) for v, slot in zip(values, game.slots, strict=True)])
        step.note(self.name, norm=norms.mean(), at_boundary=(norms >= ball.radius * (1 - 1e-4)).float().mean())
        if step.cache.get("measure_noise"):
            rivals = [
                ball.in_box(
                    ball.normalise(torch.randn_like(v), s.valid) * n.view(-1, *(1,) * (v.dim() - 1)),
                    s.valid,
                    around=s.value,
                )
                for v, s, n in zip(values, game.slots, norms, strict=True)
            ]
            with torch.no_grad():
                step.note(self.name, noise_penalty=game.payoff(rivals).mean())
