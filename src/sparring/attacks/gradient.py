"""Gradient attacks: FGSM, BIM and PGD are the library's players at the model's input."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from typing import Literal

import torch
from torch import Tensor, nn

from ..passes import still_statistics
from ..players import PGD as Ascent
from ..players import FastGradient, Game
from ..players.player import slope
from ..players.walk import State
from ..sites.site import Slot
from .boxed import Boxed, ball, check_range, clip
from .objectives import Name, Objective, margin, objective
from .outputs import Logits


@dataclass(frozen=True)
class FGSM:
    """Fast gradient (sign) method: one step of full length along the gradient (Goodfellow et al. 2015).

    Example:
        >>> import torch
        >>> net = torch.nn.Linear(4, 3)
        >>> x, y = torch.full((2, 4), 0.5), torch.tensor([0, 1])
        >>> (FGSM(0.1)(net, x, y) - x).abs().amax().item()  # doctest: +ELLIPSIS
        0.10...

    Args:
        epsilon: radius.
        norm: `float("inf")` or 2.
        loss: "cross_entropy", "margin", "dlr", or a function (logits, targets) -> (B,).
        low: smallest valid input value; None for no limit.
        high: largest valid input value.
        samples: gradients averaged per step, for models that draw noise (expectation over transformation).
    """

    epsilon: float
    norm: float = inf
    loss: Name | Objective = "cross_entropy"
    low: float | None = 0.0
    high: float | None = 1.0
    samples: int = 1

    def __call__(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """Adversarial inputs for `model` in the mode it is in."""
        check_range(inputs, self.low, self.high)
        with differentiating(model):
            inputs, targets = inputs.detach().clone(), targets.clone()
            game = _game(model, inputs, targets, objective(self.loss), self.samples)
            (delta,) = FastGradient(ball(self.norm, self.epsilon)).respond(game).values
        return clip(inputs + delta, self.low, self.high).detach()


@dataclass(frozen=True)
class PGD:
    """Projected gradient ascent with random starts and restarts (Madry et al. 2018).

    Example:
        >>> import torch
        >>> net = torch.nn.Linear(4, 3)
        >>> x, y = torch.full((2, 4), 0.5), torch.tensor([0, 1])
        >>> found = PGD(0.1, steps=5, restarts=2)(net, x, y)
        >>> bool(((found - x).abs() <= 0.1 + 1e-6).all())
        True

    Args:
        epsilon: radius.
        steps: ascent steps per restart.
        step_size: length of a step; `epsilon / 10` by default, which is the paper's setting.
        norm: `float("inf")` or 2.
        loss: "cross_entropy", "margin", "dlr", or a function (logits, targets) -> (B,).
        restarts: independent starts; per example the best one counts.
        random_start: start anywhere in the ball (uniform per coordinate); False starts at the clean input.
        keep: "best" returns the visited point that fools the model, or else has the largest loss; "last" the final one.
        low: smallest valid input value; None for no limit.
        high: largest valid input value.
        samples: gradients averaged per step, for models that draw noise (expectation over transformation).
    """

    epsilon: float
    steps: int = 10
    step_size: float | None = None
    norm: float = inf
    loss: Name | Objective = "cross_entropy"
    restarts: int = 1
    random_start: bool = True
    keep: Literal["best", "last"] = "best"
    low: float | None = 0.0
    high: float | None = 1.0
    samples: int = 1

    def __post_init__(self) -> None:
        if self.restarts < 1 or self.samples < 1:
            raise ValueError(f"PGD(restarts={self.restarts}, samples={self.samples}): both are at least 1")
        if self.keep not in ("best", "last"):
            raise ValueError(f"PGD(keep={self.keep!r}): use 'best' or 'last'")

    def __call__(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """Adversarial inputs for `model` in the mode it is in."""
        check_range(inputs, self.low, self.high)
        if self.epsilon == 0 or len(inputs) == 0:
            return inputs.clone()
        with differentiating(model):
            inputs, targets = inputs.detach().clone(), targets.clone()
            best = _Best(inputs)
            game = _game(model, inputs, targets, objective(self.loss), self.samples)
            for _ in range(self.restarts):
                self._climb(game, inputs, best)
        return clip(inputs + best.delta, self.low, self.high)

    def _climb(self, game: "_InputGame", inputs: Tensor, best: "_Best") -> None:
        step_size = self.epsilon / 10 if self.step_size is None else self.step_size
        player = Ascent(
            Boxed(ball(self.norm, self.epsilon), inputs, self.low, self.high),
            steps=self.steps,
            step_size=step_size,
            start="uniform" if self.random_start else 0.0,
            update="sign" if self.norm == inf else "normalised",
        )
        state = State((player.first_move(game.slots[0]),))
        for step in range(1, self.steps + 1):
            point = state.deltas[0].detach().requires_grad_()
            payoff = game.payoff([point])
            if self.keep == "best":
                best.offer(point, payoff, game.fooled)
            gradients = slope(payoff, [point])
            state = player.advance(State((point,)), gradients, game.slots, step).map(Tensor.detach)
        if self.keep == "best" or self.restarts > 1:
            with torch.no_grad():
                best.offer(state.deltas[0], game.payoff(state.deltas), game.fooled)
        else:
            best.delta = state.deltas[0]


def BIM(
    epsilon: float,
    steps: int = 10,
    step_size: float | None = None,
    norm: float = inf,
    loss: Name | Objective = "cross_entropy",
    keep: Literal["best", "last"] = "best",
    low: float | None = 0.0,
    high: float | None = 1.0,
    samples: int = 1,
) -> PGD:
    """Basic iterative method (Kurakin et al. 2017): PGD that starts at the clean input.

    Example:
        >>> BIM(0.1).random_start
        False
    """
    return PGD(epsilon, steps, step_size, norm, loss, 1, False, keep, low, high, samples)


@contextmanager
def differentiating(model: nn.Module) -> Iterator[None]:
    """Gradients are on, even under `no_grad` or `inference_mode` (clone what was made there), and averages stand still."""
    with torch.inference_mode(False), still_statistics(model), torch.enable_grad():
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
        outputs = [ask(inputs + values[0]) for _ in range(samples)]
        with torch.no_grad():  # nan is no answer, so it is no right one
            game.fooled = ~(margin(torch.stack([o.log_softmax(1) for o in outputs]).logsumexp(0), targets) <= 0)
        return torch.stack([loss(logits, targets) for logits in outputs]).mean(0)

    empty = inputs.new_zeros(0)
    game = _InputGame([Slot("input", inputs)], payoff, empty, empty, [], len(inputs))  # type: ignore[arg-type]
    return game
