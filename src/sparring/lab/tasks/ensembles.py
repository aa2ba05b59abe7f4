"""Ensembles under attack: three networks trained at once on digits or CIFAR-10, with and without priority dropout.

The tasks of "Deep Ensemble Robustness by Adaptive Sampling in Dropout-Based Simultaneous Training" (tables 1-4).
Targets of the paper, CIFAR-10, accuracy in percent: no attack 95.48 plain / 95.49 ADP / 95.58 PDD / 95.83 LPD;
FGSM .02 47.07 / 62.93 / 58.42 / 73.26; PGD .04 .37 / 15.27 / 13.38 / 27.50. Those attacks follow the gradient of the
softmax's cross-entropy, which unscaled dropout flattens: the columns `margin` and `autoattack` do not depend on it.
"""

import copy
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from ... import attacks
from ...balls import Linf
from ...ensembles import (
    ADP,
    DEG,
    TRS,
    Ensemble,
    EnsembleDropout,
    LaplacePriorityDropout,
    PriorityDiversifiedDropout,
    members_of,
)
from ...metrics.diversity import ambiguity, gradient_diversity
from ...metrics.robustness import robust_accuracy, sweep
from ...players import PGD, FastGradient
from ...recipes import simultaneous
from ..data.cifar import cifar10
from ..models.resnet import ResNet18
from ..models.small_cnn import SmallCNN
from ..report.figures import curves, heatmap
from ..task import Data, Method, Setting, Split, Task, Trainable, Value


@dataclass(frozen=True)
class Attacked(Split):
    """A split that is attacked when it is evaluated; validation splits are not, they are scored every epoch."""


def digits(setting: Setting) -> Data:
    """Scikit-learn's 1,797 digits of 8 x 8 pixels: 1,000 to train, 297 to validate, 500 to test."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    inputs = (torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16)[order]
    targets = torch.tensor(labels)[order]
    return Data(
        train=Split(inputs[:1000], targets[:1000]),
        validation=Split(inputs[1000:1297], targets[1000:1297]),
        test=Attacked(inputs[1297:], targets[1297:]),
    )


def painted(setting: Setting) -> Data:
    """Digits enlarged to 32 x 32 pixels and painted in random colours: the shapes of CIFAR-10 where its files are not at hand."""
    data = digits(setting)
    assert data.validation is not None
    assert data.test is not None
    colours = torch.Generator().manual_seed(0)

    def paint(split: Split, count: int) -> tuple[Tensor, Tensor]:
        assert isinstance(split.inputs, Tensor)
        large = nn.functional.interpolate(split.inputs[:count], scale_factor=4, mode="bilinear")
        return large * (0.5 + 0.5 * torch.rand(count, 3, 1, 1, generator=colours)), split.targets[:count]

    return Data(
        train=Split(*paint(data.train, setting["examples"]), collate=shifted),
        validation=Split(*paint(data.validation, 100)),
        test=Attacked(*paint(data.test, setting["test_examples"])),
    )


def cifar(setting: Setting) -> Data:
    """CIFAR-10: the first training images, a tenth of them to validate; shifted and mirrored at random in training.

    Painted digits at `tiny`.
    """
    if setting.scale == "tiny":
        return painted(setting)
    count, scored = setting["examples"], setting["test_examples"]
    train = cifar10("train", setting.data, batches=range(1, 2 + (count - 1) // 10_000))
    test = cifar10("test", setting.data)
    inputs, targets = torch.from_numpy(train.images[:count]).float() / 255, torch.from_numpy(train.labels[:count])
    held = len(inputs) // 10
    return Data(
        train=Split(inputs[held:], targets[held:], collate=shifted),
        validation=Split(inputs[:held], targets[:held]),
        test=Attacked(torch.from_numpy(test.images[:scored]).float() / 255, torch.from_numpy(test.labels[:scored])),
    )


def shifted(images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Each image moved by up to four pixels (zeros come in) and mirrored half of the time.

    >>> images, _ = shifted(torch.ones(3, 1, 8, 8), torch.zeros(3))
    >>> tuple(images.shape)
    (3, 1, 8, 8)
    """
    count, _, height, width = images.shape
    padded = nn.functional.pad(images, (4, 4, 4, 4))
    rows = torch.randint(9, (count, 1)) + torch.arange(height)
    columns = torch.randint(9, (count, 1)) + torch.arange(width)
    columns = torch.where(torch.rand(count, 1) < 0.5, columns, columns.flip(1))
    moved = padded[torch.arange(count)[:, None, None], :, rows[:, :, None], columns[:, None, :]]  # (B, H, W, C)
    # Contiguous: torch 2.13's own convolution backward corrupts memory on channels-last images and layers of 4 channels.
    return moved.movedim(-1, 1).contiguous(), targets


DROPOUTS: dict[str, Callable[[Setting], nn.Module | None]] = {
    "none": lambda s: None,
    "plain": lambda s: EnsembleDropout(s["keep"], s["rescale"]),
    "diversified": lambda s: PriorityDiversifiedDropout(s["intervals"], rescale=s["rescale"]),
    "laplace": lambda s: LaplacePriorityDropout(gamma=s["gamma"], rescale=s["rescale"]),
}


def build_digits(setting: Setting, data: Data) -> nn.Module:
    """Small convolutional networks for 8 x 8 pixels."""
    nets = [SmallCNN(size=8, channels=(16, 32), hidden=setting["width"]) for _ in range(setting["members"])]
    return Ensemble(nets, dropout=DROPOUTS[setting["dropout"]](setting))


def build_cifar(setting: Setting, data: Data) -> nn.Module:
    """ResNet-18s of the width asked for."""
    nets = [ResNet18(width=setting["width"]) for _ in range(setting["members"])]
    return Ensemble(nets, dropout=DROPOUTS[setting["dropout"]](setting))


def pixels(radius: float) -> Linf:
    """The ball of training and attack: L-infinity, pixels in [0, 1]."""
    return Linf(radius, box=(0, 1))


def objective(model: nn.Module, setting: Setting, data: Data) -> Trainable:
    """Mean of the members' cross-entropies and the terms whose weight is not zero.

    ADP and TRS are published beside the sum of the cross-entropies: dividing by K keeps every method's step size alike.
    """
    assert isinstance(model, Ensemble)
    members = len(model)
    adversary = {
        "none": None,
        "fgsm": FastGradient(pixels(setting["epsilon"])),
        "pgd": PGD(
            pixels(setting["epsilon"]), steps=10, step_size=setting["epsilon"] / 4, start="uniform", update="sign"
        ),
    }[setting["adversary"]]
    return simultaneous(
        model,
        ADP(setting["entropy"] / members, setting["determinant"] / members),
        DEG(setting["deg"]),
        TRS(setting["similarity"] / members, setting["smoothness"] / members, epsilon=setting["trs_epsilon"]),
        by=adversary,
        craft=setting["craft"],
    )


def evaluate(model: nn.Module, split: Split, setting: Setting) -> dict[str, float]:
    """Accuracy in percent and ambiguity; on the test split also accuracy under attack, L_d and L_s."""
    outputs = [model(inputs) for inputs, _ in split.batches(500)]
    logits, members = torch.cat([o.logits for o in outputs]), torch.cat([members_of(o) for o in outputs])
    found = {
        "accuracy": 100 * float((logits.argmax(-1) == split.targets).float().mean()),
        "ambiguity": ambiguity(members, split.targets),
    }
    return found | under_attack(model, split, setting) if isinstance(split, Attacked) else found


def bare(model: nn.Module) -> nn.Module:
    """The same model without hooks: some attacks copy it, and the training loop's hook would bring the whole run along.

    >>> layer = nn.Linear(2, 2)
    >>> _ = layer.register_forward_pre_hook(lambda module, args: None)
    >>> len(bare(layer)._forward_pre_hooks), bare(layer).weight is layer.weight
    (0, True)
    """
    stripped = copy.copy(model)
    stripped._forward_pre_hooks, stripped._forward_hooks = OrderedDict(), OrderedDict()
    return stripped


def under_attack(model: nn.Module, split: Split, setting: Setting) -> dict[str, float]:
    """Plain robust accuracy in percent under each attack, the share of zero gradients, quartiles of L_d and L_s."""
    model = bare(model)
    inputs, targets = split.batch(slice(0, setting["attacked"]))
    ball, found = pixels(setting["epsilon"]), {}
    chosen: dict[str, Any] = {
        "fgsm": attacks.FGSM(ball),
        "bim": attacks.BIM(ball),
        "pgd": attacks.PGD(ball),
        "paper_pgd": attacks.paper_pgd(ball),
        "margin": attacks.PGD(ball, steps=setting["margin_steps"], loss="margin", restarts=2),
    }
    for name, attack in chosen.items():
        found[name] = 100 * robust_accuracy(model, attack, inputs, targets).plain
    if setting["autoattack"]:
        few = slice(0, setting["autoattack"])
        strongest = attacks.AutoAttack(ball)
        found["autoattack"] = 100 * robust_accuracy(model, strongest, inputs[few], targets[few]).plain
    gradients = gradient_diversity(model, inputs, targets)
    found["vanished"] = 100 * gradients.vanished
    for name, values in gradients.quantiles().items():
        found |= {f"{name}_{level}": value for level, value in zip((25, 50, 75), values)}
    return found


def figures(model: nn.Module, data: Data, setting: Setting) -> list[dict[str, Any]]:
    """Accuracy against the attack's radius (figure 3) with two losses, and the mean cosine of members' gradients."""
    assert data.test is not None
    if not setting["swept"]:
        return []
    inputs, targets = data.test.batch(slice(0, setting["swept"]))
    radii = [setting["epsilon"] * factor for factor in (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)]
    lines = {}
    for loss in ("cross_entropy", "margin"):
        attack = attacks.PGD(pixels(setting["epsilon"]), loss=loss)
        lines[loss.replace("_", " ")] = [100 * share for share in sweep(model, attack, inputs, targets, radii).plain]
    note = "A gap between the two lines is gradient masking: the attack fails, the model is no stronger."
    matrix = gradient_diversity(model, inputs, targets).pairs()
    return [
        curves("Accuracy under PGD", "radius (L-infinity)", radii, "accuracy (%)", lines, note=note),
        heatmap("Mean cosine of members' input gradients", "member", "member", matrix),
    ]


ADP_WEIGHTS: dict[str, Value] = {"entropy": 2.0, "determinant": 0.5}
TRS_WEIGHTS: dict[str, Value] = {"similarity": 40.0, "smoothness": 2.5}
LAPLACE: dict[str, Value] = {"dropout": "laplace"}
METHODS = (
    Method("plain", "members' cross-entropy and nothing else", objective),
    Method("dropout", "plain dropout, rescaled", objective, {"dropout": "plain", "rescale": True}),
    Method("dropout-unscaled", "plain dropout, not rescaled", objective, {"dropout": "plain", "keep": 0.2}),
    Method("adp", "adaptive diversity promoting", objective, ADP_WEIGHTS),
    Method("pdd", "priority diversified dropout", objective, {"dropout": "diversified"}),
    Method("deg", "dispersed ensemble gradients", objective, {"deg": 0.01}),
    Method("pdd-deg", "priority diversified dropout and DEG", objective, {"dropout": "diversified", "deg": 0.01}),
    Method("trs", "transferability reduced smooth ensemble", objective, TRS_WEIGHTS),
    Method("lpd", "Laplace priority dropout, the paper's mode", objective, LAPLACE),
    Method("lpd-rescaled", "Laplace priority dropout, rescaled", objective, {**LAPLACE, "rescale": True}),
    Method("at", "FGSM adversarial training", objective, {"adversary": "fgsm"}),
    Method("at-lpd", "FGSM adversarial training and LPD", objective, {**LAPLACE, "adversary": "fgsm"}),
    Method("at-member", "FGSM crafted on each member", objective, {"adversary": "fgsm", "craft": "member"}),
)

# Section 5 and the predecessor's code: SGD .02, momentum .9, weight decay 5e-4, cosine to 1e-4, batches of 64.
SETTINGS: dict[str, Value] = {
    "optimiser": "sgd", "lr": 0.02, "momentum": 0.9, "weight_decay": 5e-4, "schedule": "cosine", "lr_end": 1e-4,
    "batch": 64, "members": 3, "dropout": "none", "keep": 0.5, "rescale": False, "gamma": 10.0, "intervals": 10,
    "entropy": 0.0, "determinant": 0.0, "deg": 0.0, "similarity": 0.0, "smoothness": 0.0, "trs_epsilon": 0.03,
    "adversary": "none", "craft": "ensemble",
}  # fmt: skip
DIGITS: dict[str, Value] = {
    **SETTINGS, "lr": 0.3, "epochs": 40, "width": 128, "epsilon": 0.1, "attacked": 300, "margin_steps": 20,
    "autoattack": 30, "swept": 100,
}  # fmt: skip
CIFAR: dict[str, Value] = {
    **SETTINGS, "lr": 0.1, "epochs": 6, "width": 8, "epsilon": 0.02, "attacked": 200, "margin_steps": 20,
    "autoattack": 50, "swept": 0, "examples": 10_000, "test_examples": 1000,
}  # fmt: skip
CIFAR_TINY: dict[str, Value] = {
    **CIFAR, "epochs": 3, "width": 4, "attacked": 20, "autoattack": 0, "margin_steps": 10, "examples": 500,
    "test_examples": 200,
}  # fmt: skip
CIFAR_PAPER: dict[str, Value] = {
    **CIFAR, "lr": 0.02, "epochs": 150, "width": 64, "attacked": 1000, "margin_steps": 100, "autoattack": 1000,
    "swept": 1000, "examples": 50_000, "test_examples": 10_000,
}  # fmt: skip
PAPER = "Deep Ensemble Robustness by Adaptive Sampling in Dropout-Based Simultaneous Training, tables 1-4"

TASKS = (
    Task(
        name="digits-ensemble",
        summary="8 x 8 digits, three small CNNs trained at once, clean and under attack",
        score="accuracy",
        better="higher",
        scales={"tiny": {**DIGITS, "epochs": 15, "attacked": 100, "autoattack": 0, "swept": 100}, "small": DIGITS},
        methods=METHODS,
        load=digits,
        build=build_digits,
        evaluate=evaluate,
        figures=figures,
        paper=PAPER,
    ),
    Task(
        name="cifar10-ensemble",
        summary="CIFAR-10, three ResNet-18s trained at once, clean and under attack",
        score="accuracy",
        better="higher",
        scales={"tiny": CIFAR_TINY, "small": CIFAR, "paper": CIFAR_PAPER},
        methods=METHODS,
        load=cifar,
        build=build_cifar,
        evaluate=evaluate,
        figures=figures,
        paper=PAPER,
    ),
)
