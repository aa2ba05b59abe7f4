"""Learned against fixed dropout: images with their uncertainty (section 3.2.1), and inputs known to be useless.

Targets of "Learnable Bernoulli Dropout" on CIFAR-10 with VGG19, accuracy / mean PAvgPU in percent: LBD 93.47 / 64.52,
Concrete 92.72 / 59.97, Gaussian 91.16 / 52.71, MC dropout 91.57 / 52.08, regular dropout 91.61 / 56.81.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...estimators import ARM, DisARM
from ...losses import cross_entropy
from ...metrics import expected_calibration_error, pavgpu, predictive_entropy, threshold_grid
from ...nn import BernoulliDropout, ConcreteDropout, GaussianDropout, convert, keep_rates
from ...objective import Objective
from ...predict import predict
from ...recipes import learnable_bernoulli
from ...terms import DropoutKL
from ..data.cifar import cifar10
from ..data.digits import digits
from ..models.vgg import VGG, VGG19
from ..report.figures import Figure, bars, curves, reliability
from ..task import Data, Method, Setting, Split, Task, Value

LAYERS: dict[str, Callable[[int], nn.Module]] = {
    "fixed": lambda units: nn.Dropout(0.5),
    "bernoulli": lambda units: BernoulliDropout(units, keep=0.5),
    "concrete": lambda units: ConcreteDropout(1, p=0.5),
    "gaussian": lambda units: GaussianDropout(units, p=0.5, learn=True),
}
PLANS: dict[str, tuple[int | str, ...]] = {
    "digits": (8, "M", 16, "M"),
    "small": (16, "M", 32, "M", 64, "M"),
    "vgg19": VGG19,
}


def images(setting: Setting) -> Data:
    """scikit-learn's digits, or CIFAR-10 from its first training files; a tenth of training validates."""
    cifar = bool(setting["files"])
    train = cifar10("train", setting.data, range(1, setting["files"] + 1)) if cifar else digits("train")
    test = cifar10("test", setting.data) if cifar else digits("test")
    inputs, scored = (as_input(part.images, setting["size"]) for part in (train, test))
    labels, held = torch.from_numpy(train.labels), len(inputs) // 10
    return Data(
        train=Split(inputs[held:], labels[held:]),
        validation=Split(inputs[:held], labels[:held]),
        test=Shifted(scored, torch.from_numpy(test.labels)),
    )


@dataclass(frozen=True)
class Shifted(Split):
    """The test split: also scored after a shift, which would be too slow after every epoch."""


def shifted(images: Tensor) -> Tensor:
    """The same images under Gaussian noise of half the range of their values: a shift that nobody trained for."""
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
    return (images + 0.5 * noise.to(images)).clamp(-1, 1)


def as_input(pixels: Any, size: int) -> Tensor:
    """Bytes as floats around zero, channels first, resized where the network wants another size."""
    values = torch.from_numpy(pixels).float() / 127.5 - 1
    values = values[:, None] if values.dim() == 3 else values
    same = values.shape[-1] == size
    return values if same else nn.functional.interpolate(values, (size, size), mode="bilinear", align_corners=False)


def build_images(setting: Setting, data: Data) -> nn.Module:
    """A VGG with the dropout that the method names, at the paper's two places."""
    kind = setting["dropout"]
    width = setting["hidden"]
    model = VGG(
        PLANS[setting["plan"]],
        hidden=(width, width),
        size=setting["size"],
        image_channels=data.train.inputs.shape[1],
        batch_norm=setting["batch_norm"],
        dropout=LAYERS["fixed" if kind == "bernoulli-tied" else kind],
    )
    if kind == "bernoulli-tied":
        convert(model, "classifier.*", tie=True)
    return model


def plain(model: nn.Module, setting: Setting, data: Data) -> Objective:
    """Cross-entropy, and the KL of learned dropout where there is a prior."""
    if not setting["prior_scale"]:
        return Objective(model, cross_entropy)
    return Objective(model, cross_entropy, DropoutKL(setting["prior_scale"], len(data.train)))


def learned(model: nn.Module, setting: Setting, data: Data) -> Objective:
    """Eq. 3 and 8: cross-entropy, the KL, and an estimated gradient for the rates."""
    estimator = {"arm": ARM(), "disarm": DisARM()}[setting["estimator"]]
    scale = setting["prior_scale"] or None
    return learnable_bernoulli(
        model, cross_entropy, estimator=estimator, prior_scale=scale, dataset_size=len(data.train)
    )


@torch.no_grad()
def probabilities(model: nn.Module, split: Split, setting: Setting) -> Tensor:
    """Mean class probabilities over the method's passes; one deterministic pass if it asks for none."""
    passes = setting["samples"]
    return torch.cat(
        [predict(model, x, passes).probabilities if passes else model(x).softmax(-1) for x, _ in split.batches(250)]
    )


def evaluate_images(model: nn.Module, split: Split, setting: Setting) -> dict[str, float]:
    """The figures of a split; of the test split those after a shift too."""
    found = scored(model, split, setting)
    if isinstance(split, Shifted):
        moved = scored(model, Split(shifted(split.inputs), split.targets), setting)
        found |= {f"{name} (shifted)": moved[name] for name in ("accuracy", "ece", "pavgpu")}
    return found


def scored(model: nn.Module, split: Split, setting: Setting) -> dict[str, float]:
    """Accuracy, PAvgPU averaged over 21 thresholds between the split's extreme entropies (percent), ECE, log loss."""
    p = probabilities(model, split, setting).double()
    right, entropy = p.argmax(1) == split.targets, predictive_entropy(p)
    chosen = p[torch.arange(len(p)), split.targets].clamp_min(1e-12)
    return {
        "accuracy": 100 * float(right.double().mean()),
        "pavgpu": 100 * float(pavgpu(right, entropy, threshold_grid(entropy)).score.mean()),
        "ece": 100 * expected_calibration_error(p, split.targets),
        "log_loss": -float(chosen.log().mean()),
    }


def image_figures(model: nn.Module, data: Data, setting: Setting) -> list[Figure]:
    """PAvgPU over thresholds (Fig. 2a), the reliability diagram, and the learned keep rates."""
    split = data.test or data.validation
    p = probabilities(model, split, setting)
    right, entropy = p.argmax(1) == split.targets, predictive_entropy(p)
    t = torch.linspace(0, 1, 21)
    scores = pavgpu(right, entropy, threshold_grid(entropy, t)).score
    drawn = [
        curves("PAvgPU", "threshold", t, "PAvgPU", {setting.method: scores}),
        reliability(p, split.targets),
    ]
    rates = keep_rates(model)
    return [*drawn, bars("Learned keep rates", "keep", rates)] if rates else drawn


def useless(setting: Setting) -> Data:
    """Ten inputs that decide a class through a random network, ten of pure noise, in a fixed random order."""
    generator = torch.Generator().manual_seed(0)
    count, useful = setting["examples"], setting["useful"]
    width = 2 * useful
    order = torch.randperm(width, generator=generator)
    x = torch.randn(3 * count, width, generator=generator)
    first, second = torch.randn(useful, 16, generator=generator), torch.randn(16, 3, generator=generator)
    y = (torch.tanh(x[:, :useful] @ first / useful**0.5) @ second).argmax(1)
    train, validation, test = (Split(*part) for part in zip(x[:, order].split(count), y.split(count)))
    return Data(train, validation, test, extra={"useful": order < useful})


def build_useless(setting: Setting, data: Data) -> nn.Module:
    """A small network whose inputs are dropped; it carries the answer key to score the separation."""
    useful: Tensor = data.extra["useful"]
    kind = setting["dropout"]
    layer: nn.Module = nn.Dropout(0.2)
    if kind == "bernoulli":
        layer = BernoulliDropout(len(useful), keep=0.8)
    elif kind == "concrete":
        layer = ConcreteDropout(len(useful), p=0.2, temperature=setting["temperature"])
    model = nn.Sequential(layer, nn.Linear(len(useful), 64), nn.ReLU(), nn.Linear(64, 3))
    model.register_buffer("useful", useful)
    return model


def evaluate_useless(model: nn.Module, split: Split, setting: Setting) -> dict[str, float]:
    """Accuracy in percent; for learned rates the mean keep of useful and useless inputs and the area under the curve."""
    logits = model(split.inputs)
    found = {"accuracy": 100 * float((logits.argmax(1) == split.targets).double().mean())}
    for rate in keep_rates(model).values():
        useful: Tensor = model.useful  # type: ignore[assignment]
        kept, dropped = rate[useful], rate[~useful]
        pairs = (kept[:, None] > dropped).double() + 0.5 * (kept[:, None] == dropped).double()
        found |= {
            "keep_useful": float(kept.mean()),
            "keep_useless": float(dropped.mean()),
            "separation_auc": float(pairs.mean()),
        }
    return found


def useless_figures(model: nn.Module, data: Data, setting: Setting) -> list[Figure]:
    """The learned keep rates of useful and useless inputs."""
    useful: Tensor = data.extra["useful"]
    rates = list(keep_rates(model).values())
    return [bars("Keep rates", "keep", {"useful": rates[0][useful], "useless": rates[0][~useful]})] if rates else []


OWN: dict[str, Value] = {"dropout": "fixed", "samples": 10, "prior_scale": 0.0, "estimator": "arm"}
BAYES: dict[str, Value] = {"prior_scale": 1.0}
IMAGES = (
    Method("regular", "fixed dropout, deterministic evaluation", plain, {"samples": 0}),
    Method("mc", "fixed dropout, Monte-Carlo evaluation", plain),
    Method("lbd", "learnable Bernoulli dropout by ARM", learned, {**BAYES, "dropout": "bernoulli"}),
    Method("lbd-disarm", "the same by DisARM", learned, {**BAYES, "dropout": "bernoulli", "estimator": "disarm"}),
    Method("lbd-tied", "one learned rate for all layers", learned, {**BAYES, "dropout": "bernoulli-tied"}),
    Method("concrete", "Concrete dropout, one rate a layer", plain, {**BAYES, "dropout": "concrete"}),
    Method("gaussian", "Gaussian dropout, a variance a unit", plain, {**BAYES, "dropout": "gaussian"}),
)
USELESS = (
    Method("fixed", "fixed dropout of 0.2 on every input", plain),
    Method("arm", "learned keep rates by ARM", learned, {"dropout": "bernoulli"}),
    Method("disarm", "learned keep rates by DisARM", learned, {"dropout": "bernoulli", "estimator": "disarm"}),
    Method("concrete", "learned rates by relaxation", plain, {"dropout": "concrete"}),
)
PAPER = "Boluki et al., Learnable Bernoulli Dropout for Bayesian Deep Learning, section 3.2.1"
NETWORK: dict[str, Value] = {"files": 0, "plan": "digits", "hidden": 64, "size": 8, "batch_norm": True}

TASKS = (
    Task(
        name="dropout-images",
        summary="accuracy and uncertainty of learned, relaxed and fixed dropout on digits or CIFAR-10",
        score="accuracy",
        better="higher",
        scales={
            "tiny": {**OWN, **NETWORK, "epochs": 15, "batch": 32},
            "small": {**OWN, **NETWORK, "files": 1, "plan": "small", "hidden": 128, "size": 32, "epochs": 6, "batch": 64},
            "paper": {
                **OWN, **NETWORK, "files": 5, "plan": "vgg19", "hidden": 4096, "size": 224, "batch_norm": False,
                "epochs": 300, "batch": 64, "lr": 1e-5, "rates_lr": 1e-4,
            },
        },
        methods=IMAGES,
        load=images,
        build=build_images,
        evaluate=evaluate_images,
        figures=image_figures,
        baseline="regular",
        paper=PAPER,
    ),
    Task(
        name="useless-inputs",
        summary="do learned keep rates tell ten useful inputs from ten of noise?",
        score="accuracy",
        better="higher",
        scales={"tiny": {**OWN, "examples": 1000, "useful": 10, "temperature": 0.1, "epochs": 40, "batch": 50}},
        methods=USELESS,
        load=useless,
        build=build_useless,
        evaluate=evaluate_useless,
        figures=useless_figures,
        baseline="fixed",
    ),
)  # fmt: skip
