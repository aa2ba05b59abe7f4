"""Attacks that other libraries implement well, behind our interface: JSMA, Carlini-Wagner, AutoAttack.

The libraries (extra `robustness`) are imported on first use. They flip modes and write gradients, so they work on a
copy of the model.
"""

import copy
import importlib
import logging
from dataclasses import KW_ONLY, dataclass
from types import ModuleType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..balls import L2, Ball, Box, Linf, check_ball
from ..balls.box import as_box
from ..nn.randomness import put_back
from ..passes.layout import outside_inference
from .outputs import Logits, logits_of
from .precision import returned


def require(module: str, package: str) -> ModuleType:
    """Import a library of the extra `robustness`, or say how to get it.

    Example:
        >>> require("json", "json").__name__
        'json'
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"{package} is not installed; pip install 'sparring[robustness]'") from error


def _copy(model: nn.Module) -> Logits:
    """The model's own copy for a library, in float32: the libraries know no other precision."""
    return Logits(copy.deepcopy(model).float())


def _estimator(model: nn.Module, inputs: Tensor, box: tuple[float, float]) -> Any:
    """ART's view of a copy of the model; ART evaluates it whatever mode it is in."""
    sides = as_box(box, "this attack")
    if sides is None or not isinstance(sides.low, int | float) or not isinstance(sides.high, int | float):
        raise ValueError(f"box={box}: the attacks of ART need two numbers, such as box=(0, 1)")
    sides.room(inputs)  # refuses inputs outside
    classifiers = require("art.estimators.classification", "adversarial-robustness-toolbox")
    alone = _copy(model).eval()
    inputs = inputs.float()
    with torch.no_grad():
        classes = logits_of(alone(inputs[:1])).shape[1]
    device = "cpu" if inputs.device.type == "cpu" else "gpu"
    return classifiers.PyTorchClassifier(
        alone,
        nn.CrossEntropyLoss(),
        tuple(inputs.shape[1:]),
        classes,
        clip_values=(sides.low, sides.high),
        device_type=device,
    )


def _run(attack: Any, inputs: Tensor, targets: Tensor | None) -> Tensor:
    """ART draws from numpy's global generator: seeded from torch's for the call, then left as it was."""
    random = require("numpy.random", "numpy")
    labels = None if targets is None else targets.cpu().numpy()
    before = random.get_state()
    random.seed(int(torch.randint(2**31, ())))
    try:
        with outside_inference(), torch.enable_grad():
            found = attack.generate(x=inputs.detach().cpu().float().numpy(), y=labels)
    finally:
        random.set_state(before)
    return returned(inputs, torch.as_tensor(found))


@dataclass(frozen=True)
class JSMA:
    """Saliency-map attack: changes few features by `theta` each (Papernot et al. 2016), through ART.

    Example:
        >>> JSMA(gamma=0.1).theta
        0.1

    Args:
        gamma: largest share of the features that may change; the parameter of Table 4.
        theta: change of a feature per step (0.1 in the paper).
        box: smallest and largest valid input value.
        batch_size: examples per call of the model.
    """

    gamma: float = 0.1
    theta: float = 0.1
    box: tuple[float, float] = (0.0, 1.0)
    batch_size: int = 128

    def __call__(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """Adversarial inputs; the class to move to is drawn by ART, as in the paper's use of it."""
        evasion = require("art.attacks.evasion", "adversarial-robustness-toolbox")
        estimator = _estimator(model, inputs, self.box)
        attack = evasion.SaliencyMapMethod(estimator, self.theta, self.gamma, self.batch_size, verbose=False)
        return _run(attack, inputs, None)


@dataclass(frozen=True)
class CarliniWagner:
    """Carlini and Wagner's L2 attack (2017), through ART: the smallest perturbation that fools, without a radius.

    Example:
        >>> CarliniWagner(constant=0.1).steps
        10

    Args:
        constant: starting weight of the classification loss, the parameter of Table 4.
        confidence: how far past the boundary to go.
        searches: binary searches for the constant.
        steps: optimisation steps per search.
        learning_rate: of those steps.
        box: smallest and largest valid input value.
        batch_size: examples per call of the model.
    """

    constant: float = 0.1
    confidence: float = 0.0
    searches: int = 1
    steps: int = 10
    learning_rate: float = 0.01
    box: tuple[float, float] = (0.0, 1.0)
    batch_size: int = 128

    def __call__(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """Adversarial inputs where the search succeeds, the clean ones elsewhere."""
        evasion = require("art.attacks.evasion", "adversarial-robustness-toolbox")
        attack = evasion.CarliniL2Method(
            _estimator(model, inputs, self.box),
            confidence=self.confidence,
            learning_rate=self.learning_rate,
            binary_search_steps=self.searches,
            max_iter=self.steps,
            initial_const=self.constant,
            batch_size=self.batch_size,
            verbose=False,
        )
        return _run(attack, inputs, targets)


class Once(logging.Filter):
    """Lets each sentence through once: AutoAttack checks the model anew in every call, and says the same each time."""

    def __init__(self) -> None:
        super().__init__()
        self.said: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        new = text not in self.said
        self.said.add(text)
        return new


once = Once()


@dataclass(frozen=True)
class AutoAttack:
    """Croce and Hein's ensemble of parameter-free attacks (2020), through pyautoattack.

    Example:
        >>> import sparring as sp
        >>> AutoAttack(sp.Linf(8 / 255, box=(0, 1))).version
        'standard'

    Args:
        ball: `sp.Linf(radius, box=(0, 1))` or `sp.L2(radius, box=(0, 1))`: AutoAttack knows no other range of data.
        version: "standard", "plus", or "rand" for models that draw noise.
        attacks: run only these, for example `("apgd-ce", "apgd-t")`.
        seed: of its random starts.
        batch_size: examples per call of the model.
    """

    ball: Ball
    _: KW_ONLY
    version: Literal["standard", "plus", "rand"] = "standard"
    attacks: tuple[str, ...] | None = None
    seed: int | None = 0
    batch_size: int = 250

    def __post_init__(self) -> None:
        check_ball(self.ball, "AutoAttack")
        if not isinstance(self.ball, L2 | Linf) or self.ball.rows:
            raise ValueError(f"AutoAttack(ball={self.ball}): it knows L2 and Linf balls of whole examples")
        if self.ball.box != Box(0, 1):
            raise ValueError(f"AutoAttack(ball={self.ball}): it knows data in [0, 1] only; write box=(0, 1)")

    def __call__(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """Adversarial inputs."""
        Box(0, 1).room(inputs)  # refuses inputs outside
        package = require("pyautoattack", "pyautoattack")
        alone, data = _copy(model), inputs.detach().float()
        with torch.no_grad():
            classes = alone(data[:2]).shape[1]
        self._check(classes, inputs.dim() == 4)
        runner = package.AutoAttack(
            alone,
            attacks=None if self.attacks is None else list(self.attacks),
            device=inputs.device,
            eps=self.ball.radius,
            norm=type(self.ball).__name__,
            seed=self.seed,
            version=self.version if self.attacks is None else "custom",
        )
        runner.logger.addFilter(once)  # the logger is the package's own, one for all: adding it again changes nothing
        for targeted in (runner.apgd_targeted, runner.fab):  # they try nine wrong classes, however many there are
            targeted.n_target_classes = min(targeted.n_target_classes, classes - 1)
        with put_back(inputs.device):  # it seeds torch's global generator
            found, _ = runner.run_standard_evaluation(data, targets, batch_size=self.batch_size)
        return returned(inputs, torch.as_tensor(found))

    def _check(self, classes: int, image: bool) -> None:
        """The parts that compare several wrong classes, or cut squares out of an image, cannot attack every model."""
        usual = ("apgd-ce", "apgd-dlr") if self.version == "rand" else ("apgd-ce", "apgd-t", "fab-t", "square")
        chosen = usual if self.attacks is None else self.attacks
        needed = {"apgd-dlr": 3, "apgd-t": 4}
        unfit = [name for name in chosen if classes < needed.get(name, 2) or (name == "square" and not image)]
        if unfit:
            fit = tuple(name for name in ("apgd-ce", "apgd-dlr", "apgd-t") if classes >= needed.get(name, 2))
            raise ValueError(
                f"{', '.join(unfit)} cannot attack {classes} classes of {'images' if image else 'flat inputs'} "
                f"(apgd-dlr needs 3 classes, apgd-t 4, square images); pass attacks={fit}"
            )
