"""A term: one perturbation of the network, and what is charged for it."""

import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from ..balls import Ball
from ..late import ask
from ..nn.randomness import fresh
from ..passes.loose import Loose
from ..passes.mark import Mark
from ..passes.ranks import check_precision, holds_parts
from ..passes.step import Step
from ..penalties import Penalty
from ..players.player import Game, Player, Response
from ..sites.site import Site
from .interaction import LOOKS, gated
from .playable import Playable, Weight, at_step

_OTHER_SITES = {  # by the kind of the one that does not fit
    "additive": "Masks stand at sp.Mask(glob of dropout layers) and sp.Recurrent(glob of RNNs)",
    "mask": "Additive sites are sp.Input(), sp.Output(glob of modules) and sp.Scores()",
}


@dataclass(frozen=True)
class Term(Playable):
    """One perturbation and what is charged for it: where, by whom, how much.

    >>> import sparring as sp
    >>> term = sp.Term(at=sp.Output("embedding"), by=sp.PGD(sp.L2(1.0)), penalty=sp.kl, weight=0.5)
    >>> term.name
    'pgd'

    Args:
        at: the site, or None for a second pass in which only the noise changes (R-Drop).
        by: the player; None goes with `at=None`.
        penalty: compares clean and perturbed outputs; None charges the supervised loss at the perturbed point. It may take
            `targets=` as well (MART).
        weight: factor of the penalty, or a function of the training step (ramp-ups).
        share_noise: the perturbed passes repeat the clean pass's random numbers (dropout); False draws fresh ones, the same for
            all passes of the term.
        detach_clean: no gradient through the clean side of the penalty. None cuts it where there are no labels to hold the
            prediction: a divergence whose two sides may both move is smallest where all predictions are the same.
        payoff: what the player climbs, if that is not what is charged: a penalty, or "loss" for the supervised loss (MART).
        supervised: factor of the supervised loss at the perturbed point, on top of the penalty (fraternal dropout, R-Drop).
        replaces: share of the clean supervised loss that this term takes over.
        name: how diagnostics call the term.
    """

    at: Site | None
    by: Player | None
    penalty: Penalty | None = None
    weight: Weight = 1.0
    share_noise: bool = True
    detach_clean: bool | None = None
    payoff: Any = None
    supervised: float = 0.0
    replaces: float = 0.0
    name: str = ""

    def __post_init__(self) -> None:
        if self.at is not None and not isinstance(self.at, Site):
            raise TypeError(
                f'Term(at={self.at!r}): a site is needed, such as sp.Output("name of a module") or sp.Input()'
            )
        if self.by is not None and not isinstance(self.by, Player):
            raise TypeError(f"Term(by={self.by!r}): a player is needed, such as sp.PGD(sp.L2(1.0))")
        if (self.at is None) != (self.by is None):
            raise ValueError(
                "Term(at, by): a site needs a player and a player needs a site; leave out both to compare noise only"
            )
        if self.at is not None and self.by is not None and self.at.kind not in self.by.kinds:
            raise ValueError(
                f"{type(self.by).__name__} plays at {' and '.join(sorted(self.by.kinds))} sites; "
                f"{self.at} is a site of kind {self.at.kind}. {_OTHER_SITES[self.at.kind]}"
            )
        if self.at is None and self.share_noise:
            raise ValueError("Term(at=None) compares two passes that differ in noise only: pass share_noise=False")
        if self.payoff is not None and self.payoff != "loss" and not callable(self.payoff):
            raise ValueError(f'Term(payoff={self.payoff!r}): a penalty, or "loss" for the supervised loss')
        if self._climbs is not None and self.share_noise and self.by is not None and self.by.starts_at_clean:
            raise ValueError(
                f"{self.by} starts at the clean point, where a divergence has no slope: start beside it (start=0.1)"
            )
        if not self.name:
            object.__setattr__(self, "name", "noise" if self.by is None else snake(type(self.by).__name__))

    @cached_property
    def sites(self) -> tuple[Site, ...]:  # type: ignore[override]
        return () if self.at is None else (self.at,)

    @property
    def idle(self) -> bool:  # type: ignore[override]
        # Asked anew in each step: the radius of a player, or of a ball, of somebody's own may grow from zero.
        return self.weight == 0 or (self.by is not None and self.by.idle)

    @cached_property
    def label_free(self) -> bool:  # type: ignore[override]
        return self.penalty is not None and self.payoff != "loss"

    @cached_property
    def joint(self) -> bool:  # type: ignore[override]
        return self.label_free and not self.supervised

    @property
    def unrolls(self) -> bool:  # type: ignore[override]
        return self.by is not None and self.by.unroll == "autograd"

    @property
    def whole(self) -> str:  # type: ignore[override]
        return 'unroll="autograd" differentiates twice through all parameters' if self.unrolls else ""

    @property
    def blind(self) -> bool:  # type: ignore[override]
        return self.penalty is None and self.by is not None and self.by.draws and self.share_noise

    @property
    def _climbs(self) -> Penalty | None:
        """The penalty that the player climbs; None is the supervised loss."""
        if self.payoff is None:
            return self.penalty
        return None if self.payoff == "loss" else self.payoff

    def play(self, step: Step) -> Tensor | None:
        """Let the player respond, run the perturbed pass, and charge for it: (B,), weighted."""
        weight = at_step(self.weight, step.number)
        if weight == 0:
            return None
        if step.clean is None:
            return self._play_blind(step, weight)
        noise = step.noise if self.share_noise else fresh(step.devices, outside=True)
        reference = self.reference(step)
        if self.at is None or self.by is None:
            return self.settle(step, reference, step.run({}, noise=noise), weight)
        response = self.respond(step, noise, reference)
        outputs = step.run({self.at: gated(step, response.values)}, noise=noise)
        charge = self.settle(step, reference, outputs, weight)
        return charge if response.interaction is None else charge + response.interaction(charge)

    def respond(self, step: Step, noise: Any, reference: Tensor) -> Response:
        """What the player does in this step."""
        assert self.at is not None
        assert self.by is not None
        at = self.at

        def payoff(values: Sequence[Tensor], attached: bool = False, clean: Tensor | None = None) -> Tensor:
            outputs = step.run(
                {at: list(values)}, graph="attached" if attached else "detached", noise=noise, replay=clean is None
            )
            if clean is None:
                clean = step.outputs if attached else constant
            return self._paid(step, clean, outputs)

        slots = [slot.bare() for slot in step.slots(at)]
        constant = reference.detach() if reference.requires_grad else reference
        game = Game(slots, payoff, constant, step.outputs, [], constant.shape[0])
        game.labelled = 0 if step.targets is None else step.labelled
        if self.by.unroll:
            if self.by.unroll == "finite_difference":
                game.parameters = [p for p in step.model.parameters() if p.requires_grad]
            game.sharded = holds_parts(step.model)
            game.meet = step.layout.batch_statistics
            game.apart = partial(_Apart.of, self, step, noise)
            if game.sharded:
                check_precision(step.model, step.outputs, step.speaker)
            elif self.by.unroll == "finite_difference":
                game.unchanged = Mark(step.model).check
                if torch.is_autocast_enabled(step.outputs.device.type):
                    if self.payoff is not None or self.supervised or self.penalty is None:
                        raise ValueError(
                            f'{step.speaker}: unroll="finite_difference" under autocast needs a player that climbs the penalty that is '
                            'charged, and nothing else; use unroll="autograd", or full precision'
                        )
                    game.precise_clean = partial(_in_full_precision, step, noise)
        if torch.is_grad_enabled():
            response = self.by.respond(game)
        else:
            with torch.enable_grad():
                response = self.by.respond(game)
        step.backward_passes += response.backward_passes
        self._note_player(step, game, response)
        return response

    def _paid(self, step: Step, clean: Tensor, outputs: Tensor) -> Tensor:
        """What the player climbs, per example."""
        climbs = self._climbs
        paid = step.loss(outputs) if climbs is None else step.penalty(climbs, clean, outputs)
        step.put_back()  # an unrolled player asks in backward too, when the step is over
        return paid

    def reference(self, step: Step) -> Tensor:
        """The clean side of the penalty, cut off where `detach_clean` says so."""
        outputs = step.outputs
        if self.detach_clean is None and step.labelled is not None:
            return torch.cat([outputs[: step.labelled], outputs[step.labelled :].detach()])
        cut = step.targets is None if self.detach_clean is None else self.detach_clean
        return outputs.detach() if cut else outputs

    def _play_blind(self, step: Step, weight: float) -> Tensor:
        """A random player and the supervised loss need no clean pass."""
        assert self.at is not None
        assert self.by is not None
        outputs = step.run({self.at: self.by.draw}, noise=None, moves_statistics=True)
        return self.settle(step, None, outputs, weight)

    def settle(self, step: Step, clean: Tensor | None, outputs: Tensor, weight: float) -> Tensor:
        """What this term adds to the objective for given perturbed outputs, per example."""
        if self.penalty is None:
            charge = step.loss(outputs)
            factor = weight + self.supervised
            total = charge if factor == 1 else factor * charge
        else:
            assert clean is not None
            charge = step.penalty(self.penalty, clean, outputs)
            if self.at is None and step.number in LOOKS and step.model.training:
                ask((charge.detach() == 0).all(), partial(_say, f"{step.speaker}: {_SAME}"))
            total = charge if weight == 1 else weight * charge
            if self.supervised and step.targets is not None:
                total = total + self.supervised * step.loss(outputs)
        value = partial(torch.mean, charge.detach()) if step.means.plain else step.average(charge.detach(), outputs)
        step.note(penalty=value, weight=weight)
        return total

    def _note_player(self, step: Step, game: Game, response: Response) -> None:
        notes = dict(response.notes)
        if response.unperturbed is not None:
            notes["unperturbed"] = partial(_count, response.unperturbed, step.batch)
        if step.number in LOOKS:
            _warn(step.speaker, response)
        assert self.by is not None
        ball = self.by.bound
        if ball is not None:
            values = [v.detach() for v in response.values]
            placed = Placed(values, [slot.valid for slot in game.slots], ball)
            notes["norm"], notes["at_boundary"] = placed.norm, placed.at_boundary
            if step.cache.get("measure_noise"):
                with torch.no_grad():
                    notes["noise_penalty"] = game.payoff(_noise_of(values, placed.norms(), game, ball)).mean()
        step.note(**notes)  # functions are asked only when somebody reads the diagnostics


@dataclass
class _Apart:
    """The payoff of one step, cut loose from the leader's graph (`players.player.Apart`)."""

    term: Term
    noise: Any
    loose: Loose
    attached: list[Tensor]

    @classmethod
    def of(cls, term: Term, step: Step, noise: Any) -> "_Apart":
        assert term.at is not None
        loose = Loose.of(step, term.at)
        return cls(term, noise, loose, [step.outputs, *loose.attached])

    def payoff(self, values: Sequence[Tensor], leaves: Sequence[Tensor]) -> Tensor:
        assert self.term.at is not None
        clean, *others = leaves
        step = self.loose.on(others)
        return self.term._paid(step, clean, step.run({self.term.at: list(values)}, noise=self.noise))

    def unchanged(self) -> None:
        self.loose.unchanged()


def _warn(name: str, response: Response) -> None:
    """Say it, once, where a player does not play."""
    still, moved = None, response.notes.get("moved")
    if response.unperturbed is not None:
        still = _asked(response.unperturbed).float().mean() > 0.5
        ask(still, partial(_say, f"{name}: {_STILL}"))
    if callable(moved):
        near = moved() < 1e-3
        ask(near if still is None else near & ~still, lambda: _say(f"{name}: {_NEAR.format(float(moved()))}"))


_SAME = (
    "both passes gave the same outputs, so that nothing is charged: the model drew no noise of its own. It needs dropout, and "
    "train mode"
)
_STILL = (
    "most examples were left unperturbed, because the gradient there is zero or not finite; start farther away "
    "(start=), or look at the outputs that the penalty compares"
)
_NEAR = (
    "the player moved by {:.1e} of its radius from its random start: the ball never binds, and this is "
    'noise in all but name. Use a larger step_size, or update="normalised"'
)


def _say(text: str) -> None:
    warnings.warn(text, stacklevel=6)


def _asked(unperturbed: Tensor | Callable[[], Tensor]) -> Tensor:
    return unperturbed if isinstance(unperturbed, Tensor) else unperturbed()


def _count(unperturbed: Tensor | Callable[[], Tensor], batch: int) -> Tensor:
    return _asked(unperturbed).expand(batch).sum()  # (1,) where the batch shares what is perturbed


def _in_full_precision(step: Step, noise: Any) -> Tensor:
    with torch.autocast(step.outputs.device.type, enabled=False):
        return step.run({}, noise=noise, replay=False)


@dataclass
class Placed:
    """What a player placed, for the diagnostics of a step."""

    values: list[Tensor]
    valid: list[Tensor | None]
    ball: Ball

    def norms(self) -> list[Tensor]:
        return [self.ball.norm(value, valid) for value, valid in zip(self.values, self.valid, strict=True)]

    def norm(self) -> float:
        """The mean norm."""
        return float(torch.cat(self.norms()).mean())

    def at_boundary(self) -> float:
        """The share of examples on the surface of the ball."""
        return float((torch.cat(self.norms()) >= self.ball.radius * (1 - 1e-4)).float().mean())


def _noise_of(values: Sequence[Tensor], norms: Sequence[Tensor], game: Game, ball: Ball) -> list[Tensor]:
    """Random directions of the lengths that the player chose: its control of equal size."""
    return [
        ball.in_box(
            ball.normalise(torch.randn_like(v), s.valid) * n.view(-1, *(1,) * (v.dim() - 1)), s.valid, around=s.value
        )
        for v, s, n in zip(values, game.slots, norms, strict=True)
    ]


def snake(name: str) -> str:
    """A class name as diagnostics write it.

    >>> snake("FastGradient"), snake("PGD")
    ('fast_gradient', 'pgd')
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
