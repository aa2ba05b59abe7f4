"""Accuracy under attack: plain and conditional, over attacks, over radii, over surrogates."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..attacks.outputs import predictions
from ..attacks.transfer import Attack, Transfer
from ..balls import Ball

Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class RobustAccuracy:
    """What an attack leaves of a model's accuracy."""

    right: Tensor
    """(B,) right without attack."""
    survived: Tensor
    """(B,) right without and under attack."""
    linf: Tensor
    """(B,) largest change of one input value."""
    l2: Tensor
    """(B,) Euclidean length of the change."""

    @property
    def clean(self) -> float:
        """Share of all examples that are right without attack."""
        return self.right.double().mean().item()

    @property
    def plain(self) -> float:
        """Share of all examples that are right and stay right: the robust accuracy of the literature."""
        return self.survived.double().mean().item()

    @property
    def conditional(self) -> float:
        """Share of the examples that were right that stay right, as the ensemble papers report it; nan if none was."""
        return self.plain / self.clean if self.clean else float("nan")

    def to_dict(self) -> dict[str, float]:
        """The figures as plain numbers."""
        return {
            "clean": self.clean,
            "plain": self.plain,
            "conditional": self.conditional,
            "largest_linf": self.linf.amax().item(),
            "largest_l2": self.l2.amax().item(),
        }


def robust_accuracy(
    model: nn.Module, attack: Attack, inputs: Tensor, targets: Tensor, *, samples: int = 1, batch_size: int = 256
) -> RobustAccuracy:
    """Attack a model in the mode it is in and count what stays right.

    Example:
        >>> import sparring as sp, torch
        >>> from sparring.attacks import FGSM
        >>> x, y = torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 0])
        >>> result = robust_accuracy(torch.nn.Identity(), FGSM(sp.Linf(0.2, box=(0, 1))), x, y)
        >>> result.clean, result.plain, result.conditional
        (1.0, 0.5, 0.5)

    Args:
        model: returns logits or an object with `.logits`.
        attack: `attack(model, inputs, targets) -> adversarial inputs`.
        inputs: (B, ...) examples.
        targets: (B,) true classes.
        samples: passes whose mean probability decides, for models that draw noise.
        batch_size: examples per call.
    """
    if len(inputs) == 0 or targets.dim() != 1 or len(inputs) != len(targets):
        raise ValueError(
            f"inputs hold {len(inputs)} examples and targets {', '.join(map(str, targets.shape))}; give as many class numbers, "
            "at least one"
        )
    parts = []
    for x, y in zip(inputs.split(batch_size), targets.split(batch_size)):
        found = attack(model, x, y)
        if found.shape != x.shape:
            raise ValueError(f"the attack turned inputs of shape {tuple(x.shape)} into {tuple(found.shape)}")
        right = predictions(model, x, samples, batch_size) == y
        change = (found - x).flatten(1)
        survived = right & (predictions(model, found, samples, batch_size) == y)
        parts.append((right, survived, change.abs().amax(1), change.norm(dim=1)))
    return RobustAccuracy(*(torch.cat(column) for column in zip(*parts)))


def attack_table(
    model: nn.Module,
    attacks: Mapping[str, Attack],
    inputs: Tensor,
    targets: Tensor,
    *,
    samples: int = 1,
    batch_size: int = 256,
    progress: Progress | None = None,
) -> dict[str, RobustAccuracy]:
    """Several attacks on the same examples (Table 4; with `Transfer` attacks, Table 5).

    Example:
        >>> import sparring as sp, torch
        >>> from sparring.attacks import FGSM, Transfer
        >>> net, other = torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)
        >>> fast = FGSM(sp.Linf(0.1, box=(0, 1)))
        >>> attacks = {"FGSM": fast, "type I": Transfer(fast, other)}
        >>> sorted(attack_table(net, attacks, torch.rand(8, 4), torch.zeros(8).long()))
        ['FGSM', 'type I']
    """
    table = {}
    for done, (name, attack) in enumerate(attacks.items()):
        table[name] = robust_accuracy(model, attack, inputs, targets, samples=samples, batch_size=batch_size)
        if progress is not None:
            progress(name, (done + 1) / len(attacks))
    return table


@dataclass(frozen=True)
class Sweep:
    """Accuracy against radius, one curve of Fig. 3."""

    radii: tuple[float, ...]
    results: tuple[RobustAccuracy, ...]

    @property
    def plain(self) -> tuple[float, ...]:
        """Plain robust accuracy at each radius."""
        return tuple(result.plain for result in self.results)

    @property
    def conditional(self) -> tuple[float, ...]:
        """Conditional robust accuracy at each radius."""
        return tuple(result.conditional for result in self.results)

    def reaches_zero(self) -> float | None:
        """The smallest radius at which nothing stays right, None if there is none in the sweep."""
        return next((r for r, share in zip(self.radii, self.plain) if share == 0), None)

    def rows(self) -> list[dict[str, float]]:
        """One dictionary per radius, ready for a table or a plot."""
        return [{"radius": r, **result.to_dict()} for r, result in zip(self.radii, self.results)]


def sweep(
    model: nn.Module,
    attack: Any,
    inputs: Tensor,
    targets: Tensor,
    radii: Sequence[float],
    *,
    samples: int = 1,
    batch_size: int = 256,
    progress: Progress | None = None,
) -> Sweep:
    """Repeat an attack at growing radii (Fig. 3).

    Example:
        >>> import sparring as sp, torch
        >>> from sparring.attacks import BIM
        >>> x, y = torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 0])
        >>> curve = sweep(torch.nn.Identity(), BIM(sp.Linf(0.1, box=(0, 1))), x, y, [0.0, 0.2, 0.8])
        >>> curve.plain, curve.reaches_zero()
        ((1.0, 0.5, 0.0), 0.8)

    Args:
        model: returns logits or an object with `.logits`.
        attack: an attack with a `ball`, repeated with each radius (a step size that was given grows with it), or a
            function `radius -> attack`.
        inputs: (B, ...) examples.
        targets: (B,) true classes.
        radii: in the order wanted.
        samples: passes whose mean probability decides.
        batch_size: examples per call.
        progress: called with (which radius, share done).
    """
    results = []
    for done, radius in enumerate(radii):
        results.append(
            robust_accuracy(model, _at(attack, radius), inputs, targets, samples=samples, batch_size=batch_size)
        )
        if progress is not None:
            progress(f"radius {radius:.4g}", (done + 1) / len(radii))
    return Sweep(tuple(radii), tuple(results))


def _at(attack: Any, radius: float) -> Attack:
    """The attack with another radius."""
    if isinstance(attack, Transfer):
        return replace(attack, attack=_at(attack.attack, radius))
    ball = getattr(attack, "ball", None)
    if not isinstance(ball, Ball):
        if is_dataclass(attack):
            raise TypeError(f"{type(attack).__name__} has no ball to sweep; give a function radius -> attack")
        made: Attack = attack(radius)
        return made
    changes: dict[str, Any] = {"ball": ball.with_radius(radius)}
    step_size = getattr(attack, "step_size", None)
    if step_size is not None and ball.radius > 0 and radius > 0:
        changes["step_size"] = step_size * radius / ball.radius
    return replace(attack, **changes)
