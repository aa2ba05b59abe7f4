"""Gradient attacks: FGSM, BIM and PGD are the library's players at the model's input."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..balls import Ball, check_ball
from ..passes.layout import outside_inference, still_statistics
from ..players import PGD as Ascent
from ..players import FastGradient, Game
from ..players.pgd import Update
from ..players.player import slope
from ..players.walk import State
from ..sites.site import Slot
from .objectives import Name, Objective, margin, objective
from .outputs import Logits
from .precision import placed, single


@dataclass(frozen=True)
class FGSM:
    """Fast gradient (sign) method: one step of full length along the gradient (Goodfellow et al. 2015).

    Example:
        >>> import sparring as sp, torch
        >>> net = torch.nn.Linear(4, 3)
        >>> x, y = torch.full((2, 4), 0.5), torch.tensor([0, 1])
        >>> (FGSM(sp.Linf(0.1, box=(0, 1)))(net, x, y) - x).abs().amax().item()  # doctest: +ELLIPSIS
        0.10...

    Args:
        ball: how far, and within which range of valid data: `sp.Linf(8 / 255, box=(0, 1))`.
        loss: "cross_entropy", "margin", "dlr", or a function (logits, targets) -> (B,).
        samples: gradients averaged per step, for models that draw noise (expectation over transformation).
    """

    ball: Ball
    _: KW_ONLY
    loss: Name | Objective = "cross_entropy"
    samples: int = 1

    def __post_init__(self) -> None:
        check_ball(self.ball, "FGSM")

    def __call__(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """Adversarial inputs for `model` in the mode it is in."""
        if self.ball.radius == 0 or len(inputs) == 0:
            return inputs.clone()
        with differentiating(model):
            inputs, targets = inputs.detach().clone(), targets.clone()
            game = _game(model, inputs, targets, objective(self.loss), self.samples)
            (delta,) = FastGradient(self.ball).respond(game).values
        return placed(inputs, delta).detach()


@dataclass(frozen=True)
class PGD:
    """Projected gradient ascent with random starts and restarts (Madry et al. 2018).

    The default crosses the ball: 20 steps of an eighth of the radius from a random start, of which the best point counts.
    `paper_pgd` has the shorter steps of the ensemble papers.

    Example:
        >>> import sparring as sp, torch
        >>> net = torch.nn.Linear(4, 3)
        >>> x, y = torch.full((2, 4), 0.5), torch.tensor([0, 1])
        >>> found = PGD(sp.Linf(0.1, box=(0, 1)), steps=5, restarts=2)(net, x, y)
        >>> bool(((found - x).abs() <= 0.1 + 1e-6).all())
        True

    Args:
        ball: how far, and within which range of valid data: `sp.Linf(8 / 255, box=(0, 1))`.
        steps: ascent steps per restart.
        step_size: length of a step; `2.5 * radius / steps` by default.
        start: "uniform" starts anywhere in the ball, 0 at the clean input, a number at Gaussian noise of that size.
        update: "normalised", "raw", "sign" or "adam"; None: the ball's steepest direction.
        loss: "cross_entropy", "margin", "dlr", or a function (logits, targets) -> (B,).
        restarts: independent starts; per example the best one counts.
        keep: "best" returns the visited point that fools the model, or else has the largest loss; "last" the final one.
        samples: gradients averaged per step, for models that draw noise (expectation over transformation).
    """

    ball: Ball
    _: KW_ONLY
    steps: int = 20
    step_size: float | None = None
    start: float | Literal["uniform"] = "uniform"
    update: Update | None = None
    loss: Name | Objective = "cross_entropy"
    restarts: int = 1
    keep: Literal["best", "last"] = "best"
    samples: int = 1

    def __post_init__(self) -> None:
        check_ball(self.ball, "PGD")
        if self.restarts < 1 or self.samples < 1:
            raise ValueError(f"PGD(restarts={self.restarts}, samples={self.samples}): both are at least 1")
        if self.keep not in ("best", "last"):
            raise ValueError(f"PGD(keep={self.keep!r}): use 'best' or 'last'")
        if self.ball.radius > 0:
            self._player()  # says what is wrong with steps, step size, start and update

    def __call__(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """Adversarial inputs for `model` in the mode it is in."""
        if self.ball.radius == 0 or len(inputs) == 0:
            return inputs.clone()
        with differentiating(model):
            inputs, targets = inputs.detach().clone(), targets.clone()
            best = _Best(single(inputs))
            game = _game(model, inputs, targets, objective(self.loss), self.samples)
            for _ in range(self.restarts):
                self._climb(game, best)
        return placed(inputs, best.delta)

    def _player(self) -> Ascent:
        size = 2.5 * self.ball.radius / max(1, self.steps) if self.step_size is None else self.step_size
        return Ascent(self.ball, steps=self.steps, step_size=size, start=self.start, update=self.update or "raw")

    def _climb(self, game: "_InputGame", best: "_Best") -> None:
        player, slot = self._player(), game.slots[0]
        state = State((_anywhere(self.ball, slot) if self.start == "uniform" else player.first_move(slot),))
        for step in range(1, self.steps + 1):
            point = state.deltas[0].detach().requires_grad_()
            payoff = game.payoff([point])
            if self.keep == "best":
                best.offer(point, payoff, game.fooled)
            (gradient,) = slope(payoff, [point])
            if self.update is None:
                gradient = self.ball.steepest(gradient)
            state = player.advance(state._replace(deltas=(point,)), [gradient], game.slots, step).map(Tensor.detach)
        if self.keep == "best" or self.restarts > 1:
            with torch.no_grad():
                best.offer(state.deltas[0], game.payoff(state.deltas), game.fooled)
        else:
            best.delta = state.deltas[0]


def BIM(ball: Ball, **settings: Any) -> PGD:
    """Basic iterative method (Kurakin et al. 2017): PGD that starts at the clean input.

    Example:
        >>> import sparring as sp
        >>> BIM(sp.Linf(0.1, box=(0, 1))).start
        0.0

    Args:
        ball: how far.
        **settings: those of `PGD`.
    """
    return PGD(ball, **{"start": 0.0, **settings})


def paper_pgd(ball: Ball, **settings: Any) -> PGD:
    """PGD as the ensemble papers run it (Wu et al. 2023, Table 4): ten steps of a tenth of the radius.

    From a random start such steps seldom cross the ball, so it is a weak attack, often weaker than one step of `FGSM`: for
    comparison with published figures. Their BIM is `paper_pgd(ball, start=0)`.

    Example:
        >>> import sparring as sp
        >>> attack = paper_pgd(sp.Linf(0.02, box=(0, 1)))
        >>> attack.steps, attack.step_size
        (10, 0.002)

    Args:
        ball: how far.
        **settings: those of `PGD`.
    """
    return PGD(ball, **{"steps": 10, "step_size": ball.radius / 10 or None, **settings})


def _anywhere(ball: Ball, slot: Slot) -> Tensor:
    """Uniform in the ball: a point of its surface, pulled in by the n-th root of a uniform number."""
    like = torch.zeros_like(slot.value)
    share = torch.rand(len(like), *[1] * (like.dim() - 1), dtype=like.dtype, device=like.device)
    return ball.sample(like, around=slot.value) * share ** (1 / max(1, like[0].numel()))


@contextmanager
def differentiating(model: nn.Module) -> Iterator[None]:
    """Gradients are on, even under `no_grad` or `inference_mode` (clone what was made there), and averages stand still."""
    with outside_inference(), still_statistics(model), torch.enable_grad():
        yield


class _Best:
    """Per example the best perturbation seen: one that fools beats one that does not, then the larger loss wins."""

    def __init__(self, inputs: Tensor) -> None:
        self.delta = torch.zeros_like(inputs)
        self.value = torch.full((len(inputs),), -torch.inf, dtype=inputs.dtype, device=inputs.device)
        self.fooled = torch.zeros(len(inputs), dtype=torch.bool, device=inputs.device)

    def offer(self, delta: Tensor, value: Tensor, fooled: Tensor) -> None:
        value = value.detach().nan_to_num(-torch.inf).to(self.value.dtype)
        better = (fooled & ~self.fooled) | ((fooled == self.fooled) & (value > self.value))
        self.delta = torch.where(better.reshape(-1, *[1] * (delta.dim() - 1)), delta.detach(), self.delta)
        self.value = torch.where(better, value, self.value)
        self.fooled = self.fooled | fooled


class _InputGame(Game):
    """A game at the model's input; remembers who was fooled in the last pass."""

    fooled: Tensor


def _game(model: nn.Module, inputs: Tensor, targets: Tensor, loss: Objective, samples: int) -> _InputGame:
    if samples < 1:
        raise ValueError(f"samples={samples}: a gradient is taken at least once")
    ask = Logits(model)

    def payoff(
        values: "list[Tensor] | tuple[Tensor, ...]", attached: bool = False, clean: Tensor | None = None
    ) -> Tensor:
        outputs = [single(ask(placed(inputs, values[0]))) for _ in range(samples)]
        with torch.no_grad():  # nan is no answer, so it is no right one
            game.fooled = ~(margin(torch.stack([o.log_softmax(1) for o in outputs]).logsumexp(0), targets) <= 0)
        return torch.stack([loss(logits, targets) for logits in outputs]).mean(0)

    empty = inputs.new_zeros(0)
    game = _InputGame([Slot("input", single(inputs))], payoff, empty, empty, [], len(inputs))  # type: ignore[arg-type]
    return game
