"""Is a model robust, or does it only hide its gradient from the attack? Ask it several ways and compare."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor, nn

from ...attacks import FGSM, PGD, Attack, AutoAttack, Logits, RandomSearch, Transfer
from ...attacks.objectives import Name
from ...attacks.outputs import scores
from ...attacks.precision import returned
from ...balls import L2, Ball, Box, Linf, check_ball
from ...losses import cross_entropy
from ...nn.randomness import put_back
from ...passes.layout import outside_inference, still_statistics
from ..robustness import Progress, RobustAccuracy, robust_accuracy
from .checks import (
    AUTO,
    BLACK_BOX,
    DLR,
    DOUBLE,
    LONG,
    MARGIN,
    SINGLE,
    TWIN,
    USUAL,
    attack_checks,
    beats,
    mode_checks,
    output_checks,
    sweep_checks,
)
from .report import Audit, conclude

TWIN_GAP = 10.0  # logits this far apart leave the softmax alive in float32


def audit(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    ball: Ball,
    *,
    steps: int = 20,
    restarts: int = 5,
    queries: int = 300,
    samples: int = 1,
    tolerance: float = 0.05,
    autoattack: bool | None = None,
    batch_size: int = 256,
    seed: int = 0,
    progress: Progress | None = None,
) -> Audit:
    """Attack a model in several ways and say whether its robustness is real.

    A model whose logits are far apart has a saturated softmax: the gradient of the cross-entropy is zero to the last
    bit, a gradient attack stands still, and the model looks robust. The audit repeats the attack with losses,
    precisions and searches that saturation does not stop, and compares them example by example.

    Example:
        >>> import sparring as sp, torch
        >>> _ = torch.manual_seed(0)
        >>> net = torch.nn.Linear(16, 3)
        >>> x = torch.rand(64, 16)
        >>> y = net(x).argmax(1)
        >>> ball = sp.Linf(0.1, box=(0, 1))
        >>> audit(net, x, y, ball, autoattack=False).verdict
        'no sign of masking'
        >>> with torch.no_grad():
        ...     _ = net.weight.mul_(1e4), net.bias.mul_(1e4)
        >>> audit(net, x, y, ball, autoattack=False).verdict
        'masked'

    Args:
        model: returns logits or an object with `.logits`; used in the mode it is in.
        inputs: (B, ...) examples; a few hundred are enough.
        targets: (B,) true classes.
        ball: how far, and within which range of valid data: `sp.Linf(8 / 255, box=(0, 1))`.
        steps: steps of the usual attack; the long one takes five times as many.
        restarts: restarts of the long attack.
        queries: model calls of the black-box attack.
        samples: passes averaged in every attack and prediction, for models that draw noise.
        tolerance: an attack must break this share of all examples more than the usual one (and more than chance
            explains, by a paired sign test) to count as evidence.
        autoattack: run AutoAttack; None runs it if it is installed and applies (an `L2` or `Linf` ball with `box=(0, 1)`).
        batch_size: examples per call.
        seed: of every random start; torch's own generator is left as it was.
        progress: called with (what is running, share done).

    Returns:
        An `Audit`: `print` it, or read `.verdict`, `.lowest`, `.checks`, `.to_dict()`, `.to_html()`.

    Paper: the check that the robustness tables of Wu et al. need; after Athalye et al. 2018 and Carlini et al. 2019.
    """
    check_ball(ball, "audit")
    if not inputs.is_floating_point():
        raise TypeError(
            f"audit(inputs={str(inputs.dtype).removeprefix('torch.')}): ids cannot be moved; audit what follows the embedding, "
            "as a module of its own: audit(rest, model.embedding(ids).detach(), targets, sp.L2(1.0))"
        )
    if not ball.radius > 0:
        raise ValueError(f"audit(ball={ball}): an audit needs a radius above 0")
    if autoattack:
        AutoAttack(ball)  # says why it cannot be run
    if autoattack is None:
        fits = isinstance(ball, L2 | Linf) and not ball.rows and ball.box == Box(0, 1)
        autoattack = fits and find_spec("pyautoattack") is not None
    with outside_inference():
        inputs, targets = inputs.detach().clone(), targets.clone()
    bench = _Bench(model, inputs, targets, ball, steps, samples, batch_size)
    with put_back(inputs.device), outside_inference(), still_statistics(model):
        torch.manual_seed(seed)
        logits, again = scores(model, inputs, 1, batch_size), scores(model, inputs, 1, batch_size)
        checks = output_checks(logits, again, bench.zero_gradients(), samples, tolerance)
        checks += mode_checks(model)
        plan, radii = bench.plan(logits, restarts, queries, autoattack), bench.radii()
        answers = logits.argmax(1).unique()
        tell = progress or (lambda what, share: None)
        results: dict[str, RobustAccuracy] = {}
        for name, make in plan.items():
            tell(name, len(results) / (len(plan) + len(radii)))
            results[name] = bench.attack(make())
        sharper = bench.temperature(logits) < 1
        checks += attack_checks(results, tolerance, sharper)
        curve: list[tuple[float, RobustAccuracy, RobustAccuracy]] = []
        for radius in radii:
            tell(f"radius {radius:.3g}", (len(plan) + len(curve)) / (len(plan) + len(radii)))
            both = bench.both(ball.with_radius(radius))
            curve.append((radius, *both))
            if both[0].plain == both[1].plain == 0:
                break
        tried = [*results.values(), *(result for _, *both in curve for result in both)]
        moved = len(answers) > 1 or any(bool((result.right & ~result.survived).any()) for result in tried)
        checks += sweep_checks(curve, tolerance, moved)
        tell("done", 1.0)
    usual = results[USUAL]
    lowest = torch.stack([result.survived for result in results.values()]).all(0).double().mean().item()
    stronger = [results[LONG], *([results[TWIN]] if sharper else [])]
    strengthened = any(beats(other, usual, tolerance) for other in stronger)
    verdict, summary = conclude(checks, usual.clean, usual.plain, lowest, strengthened)
    return Audit(ball, usual.clean, usual.plain, lowest, results, tuple(checks), verdict, summary)


@dataclass(frozen=True)
class _Bench:
    """The model, the data and the settings that every attack of one audit shares."""

    model: nn.Module
    inputs: Tensor
    targets: Tensor
    ball: Ball
    steps: int
    samples: int
    batch_size: int

    def attack(self, attack: Attack) -> RobustAccuracy:
        return robust_accuracy(
            self.model, attack, self.inputs, self.targets, samples=self.samples, batch_size=self.batch_size
        )

    def pgd(self, loss: Name, ball: Ball, longer: int = 1, restarts: int = 1) -> PGD:
        return PGD(ball, steps=longer * self.steps, loss=loss, restarts=restarts, samples=self.samples)

    def both(self, ball: Ball) -> tuple[RobustAccuracy, RobustAccuracy]:
        """The usual attack and the one on the margin."""
        return self.attack(self.pgd("cross_entropy", ball)), self.attack(self.pgd("margin", ball))

    def plan(self, logits: Tensor, restarts: int, queries: int, autoattack: bool) -> dict[str, Callable[[], Attack]]:
        """The attacks at the radius asked about, each made when its turn comes."""
        ball, classes = self.ball, logits.shape[1]
        usual = self.pgd("cross_entropy", ball)
        temperature = self.temperature(logits)
        double = _in_double(self.model, self.inputs)
        plan: dict[str, Callable[[], Attack]] = {
            USUAL: lambda: usual,
            SINGLE: lambda: FGSM(ball, samples=self.samples),
            LONG: lambda: self.pgd("cross_entropy", ball, longer=5, restarts=restarts),
            MARGIN: lambda: self.pgd("margin", ball),
            DLR: lambda: self.pgd("dlr", ball),
            DOUBLE: lambda: _InDouble(usual, double or self.model),
            BLACK_BOX: lambda: RandomSearch(ball, queries=queries, samples=self.samples),
            TWIN: lambda: Transfer(usual, Logits(self.model, temperature), kind="II"),
        }
        if classes < 3:
            del plan[DLR]
        if double is None:
            del plan[DOUBLE]
        if autoattack and (classes > 2 or self.samples == 1):  # its version for noise needs three classes
            second = {2: (), 3: ("apgd-dlr",)}.get(classes, ("apgd-t",))
            plan[AUTO] = lambda: (
                AutoAttack(ball, version="rand") if self.samples > 1 else AutoAttack(ball, attacks=("apgd-ce", *second))
            )
        return plan

    def temperature(self, logits: Tensor) -> float:
        """What the twin divides the logits by, so that the median gap becomes `TWIN_GAP`; below 1 it makes them larger."""
        top = logits.topk(2, dim=1).values
        gap = (top[:, 0] - top[:, 1]).nan_to_num(TWIN_GAP)
        return max(gap.median().item() / TWIN_GAP, 1e-6)

    def radii(self) -> list[float]:
        """Twice the radius, four times, ... up to one that reaches every valid input (ten doublings without a range)."""
        radius, one = self.ball.radius, self.inputs[:1]
        lower, upper = self.ball.room(one, None, one)
        if lower is None or upper is None:
            return [radius * 2**i for i in range(1, 11)]
        whole = self.ball.norm(upper - lower).item()
        return [*(radius * 2**i for i in range(1, 30) if radius * 2**i < whole), whole]

    def zero_gradients(self) -> float:
        """Share of examples whose input gradient of the cross-entropy is exactly zero, or not a number."""
        flat, ask = [], Logits(self.model)
        for x, y in zip(self.inputs.split(self.batch_size), self.targets.split(self.batch_size)):
            x = x.detach().clone().requires_grad_()
            with torch.enable_grad():
                (gradient,) = torch.autograd.grad(cross_entropy(ask(x), y).sum(), x)
            peak = gradient.flatten(1).abs().amax(1)
            flat.append(~((peak > 0) & peak.isfinite()))
        return torch.cat(flat).double().mean().item()


def _in_double(model: nn.Module, inputs: Tensor) -> nn.Module | None:
    """A float64 copy of the model; None if it cannot run (it turns its input into float32, say)."""
    try:
        twin = copy.deepcopy(model).double()
        scores(twin, inputs[:2].double())
    except RuntimeError:
        return None
    return twin


class _InDouble:
    """Crafts on a float64 copy of the model."""

    def __init__(self, attack: Attack, model: nn.Module) -> None:
        self.attack, self.model = attack, model

    def __call__(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        return returned(inputs, self.attack(self.model, inputs.double(), targets))
