"""Attacks that other libraries implement well, behind our interface: JSMA, Carlini-Wagner, AutoAttack.

The libraries (extra `robustness`) are imported on first use. They flip modes and write gradients, so they work on a
copy of the model.
"""

import copy
import importlib
from dataclasses import dataclass
from math import inf
from types import ModuleType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .boxed import check_range
from .outputs import Logits, logits_of


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


def _estimator(model: nn.Module, inputs: Tensor, low: float, high: float) -> Any:
    """ART's view of a copy of the model; ART evaluates it whatever mode it is in."""
    classifiers = require("art.estimators.classification", "adversarial-robustness-toolbox")
    alone = _copy(model).eval()
    inputs = inputs.float()
    with torch.no_grad():
        classes = logits_of(alone(inputs[:1])).shape[1]
    device = "cpu" if inputs.device.type == "cpu" else "gpu"
    return classifiers.PyTorchClassifier(
        alone, nn.CrossEntropyLoss(), tuple(inputs.shape[1:]), classes, clip_values=(low, high), device_type=device
    )


def _run(attack: Any, inputs: Tensor, targets: Tensor | None) -> Tensor:
    """ART draws from numpy's global generator: seeded from torch's for the call, then left as it was."""
    random = require("numpy.random", "numpy")
    labels = None if targets is None else targets.cpu().numpy()
    before = random.get_state()
    random.seed(int(torch.randint(2**31, ())))
    try:
        found = attack.generate(x=inputs.detach().cpu().float().numpy(), y=labels)
    finally:
        random.set_state(before)
    return torch.as_tensor(found, dtype=inputs.dtype, device=inputs.device)


@dataclass(frozen=True)
class JSMA:
    """Saliency-map attack: changes few features by `theta` each (Papernot et al. 2016), through ART.

    Example:
        >>> JSMA(gamma=0.1).theta
        0.1

    Args:
        gamma: largest share of the features that may change; the parameter of Table 4.
        theta: change of a feature per step (0.1 in the paper).
        low: smallest valid input value.
        high: largest valid input value.
        batch_size: examples per call of the model.
    """

    gamma: float = 0.1
    theta: float = 0.1
    low: float = 0.0
    high: float = 1.0
    batch_size: int = 128

    def __call__(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """Adversarial inputs; the class to move to is drawn by ART, as in the paper's use of it."""
        check_range(inputs, self.low, self.high)
        evasion = require("art.attacks.evasion", "adversarial-robustness-toolbox")
        estimator = _estimator(model, inputs, self.low, self.high)
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
        low: smallest valid input value.
        high: largest valid input value.
        batch_size: examples per call of the model.
    """

    constant: float = 0.1
    confidence: float = 0.0
    searches: int = 1
    steps: int = 10
    learning_rate: float = 0.01
    low: float = 0.0
    high: float = 1.0
    batch_size: int = 128

    def __call__(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """Adversarial inputs where the search succeeds, the clean ones elsewhere."""
        check_range(inputs, self.low, self.high)
        evasion = require("art.attacks.evasion", "adversarial-robustness-toolbox")
        attack = evasion.CarliniL2Method(
            _estimator(model, inputs, self.low, self.high),
            confidence=self.confidence,
            learning_rate=self.learning_rate,
            binary_search_steps=self.searches,
            max_iter=self.steps,
            initial_const=self.constant,
            batch_size=self.batch_size,
            verbose=False,
        )
        return _run(attack, inputs, targets)


@dataclass(frozen=True)
class AutoAttack:
    """Croce and Hein's ensemble of parameter-free attacks (2020), through pyautoattack.

    Example:
        >>> AutoAttack(8 / 255).version
        'standard'

    Args:
        epsilon: radius.
        norm: `float("inf")`, 2 or 1.
        version: "standard", "plus", or "rand" for models that draw noise.
        attacks: run only these, for example `("apgd-ce", "apgd-t")`.
        seed: of its random starts.
        batch_size: examples per call of the model.
    """

    epsilon: float
    norm: float = inf
    version: Literal["standard", "plus", "rand"] = "standard"
    attacks: tuple[str, ...] | None = None
    seed: int | None = 0
    batch_size: int = 250

    def __call__(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """Adversarial inputs; data must lie in [0, 1], which AutoAttack takes for granted."""
        check_range(inputs, 0.0, 1.0)
        if self.norm not in (1, 2, inf):
            raise ValueError(f"norm is {self.norm}; AutoAttack knows 1, 2 and float('inf')")
        package = require("pyautoattack", "pyautoattack")
        alone, data = _copy(model), inputs.detach().float()
        with torch.no_grad():
            classes = alone(data[:2]).shape[1]
        self._check(classes, inputs.dim() == 4)
        runner = package.AutoAttack(
            alone,
            attacks=None if self.attacks is None else list(self.attacks),
            device=inputs.device,
            eps=self.epsilon,
            norm={1: "L1", 2: "L2", inf: "Linf"}[self.norm],
            seed=self.seed,
            version=self.version if self.attacks is None else "custom",
        )
        for targeted in (runner.apgd_targeted, runner.fab):  # they try nine wrong classes, however many there are
            targeted.n_target_classes = min(targeted.n_target_classes, classes - 1)
        devices = [inputs.device] if inputs.device.type == "cuda" else []
        with torch.random.fork_rng(devices):  # it seeds torch's global generator
            found, _ = runner.run_standard_evaluation(data, targets, batch_size=self.batch_size)
        return torch.as_tensor(found).to(inputs)

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
