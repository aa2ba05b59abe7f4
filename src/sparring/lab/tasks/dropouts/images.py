"""Learned against fixed dropout on images, with their uncertainty (section 3.2.1): digits, or CIFAR-10 with a VGG.

Targets of "Learnable Bernoulli Dropout" on CIFAR-10 with VGG19, accuracy / mean PAvgPU in percent: LBD 93.47 / 64.52,
Concrete 92.72 / 59.97, Gaussian 91.16 / 52.71, MC dropout 91.57 / 52.08, regular dropout 91.61 / 56.81.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from ....metrics import expected_calibration_error, pavgpu, predictive_entropy, threshold_grid
from ....nn import keep_rates
from ....predict import predict
from ...data.cifar import cifar10
from ...data.digits import digits
from ...data.files import as_folder
from ...errors import LabError
from ...models.vgg import VGG, VGG19
from ...report.figures import Figure, bars, curves, reliability
from ...task import Data, Method, Setting, Split, Task, Value
from .layers import BAYES, OWN, layer_of, learned, plain, rivals, tied

PLANS: dict[str, tuple[int | str, ...]] = {
    "digits": (8, "M", 16, "M"),
    "small": (16, "M", 32, "M", 64, "M"),
    "vgg19": VGG19,
}


@dataclass(frozen=True)
class Tested(Split):
    """A test split that knows the validation split, whose extreme entropies set the thresholds of PAvgPU."""

    validation: Split | None = None


def load(setting: Setting) -> Data:
    """scikit-learn's digits, or CIFAR-10 from its first training files; a tenth of training validates.

    Images stay bytes and are resized batch by batch: 50,000 of 224 x 224 as floats would be 30 GB.
    """
    cifar = bool(setting["files"])
    train = cifar10("train", setting.data, range(1, setting["files"] + 1)) if cifar else digits("train")
    test = cifar10("test", setting.data) if cifar else digits("test")
    inputs, scored = (torch.from_numpy(part.images) for part in (train, test))
    labels, held = torch.from_numpy(train.labels), len(inputs) // 10
    collate = resizing(setting["size"])
    validation = Split(inputs[:held], labels[:held], collate)
    return Data(
        train=Split(inputs[held:], labels[held:], collate),
        validation=validation,
        test=Tested(scored, torch.from_numpy(test.labels), collate, validation=validation),
        extra={"channels": 3 if cifar else 1},
    )


def resizing(size: int) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Turns bytes into floats around zero, channels first, of the size the network wants."""

    def collate(pixels: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        values = pixels.float() / 127.5 - 1
        values = values[:, None] if values.dim() == 3 else values
        if values.shape[-1] != size:
            values = nn.functional.interpolate(values, (size, size), mode="bilinear", align_corners=False)
        return values, targets

    return collate


def build(setting: Setting, data: Data) -> nn.Module:
    """A VGG with the dropout that the method names, at the paper's two places."""
    kind, width = setting["dropout"], setting["hidden"]
    inner = "fixed" if kind == "bernoulli-tied" else kind
    model = VGG(
        PLANS[setting["plan"]],
        hidden=(width, width),
        size=setting["size"],
        image_channels=data.extra["channels"],
        batch_norm=setting["batch_norm"],
        dropout=lambda units: layer_of(inner, units, setting),
    )
    if setting["weights"]:
        adopt(model, setting["weights"], setting.data)
    if kind == "bernoulli-tied":
        tied(model, "classifier.*", setting)
    return model


def adopt(model: nn.Module, name: str, data: Path | None) -> None:
    """Start from ImageNet: the weights of torchvision's VGG of the same plan, all but the last layer, from a file of the user's.

    Args:
        model: whose layers have the same names as torchvision's.
        name: a file of a state dict, in the data folder or anywhere; only tensors are read from it.
        data: the data folder.
    """
    path = Path(name).expanduser()
    path = path if path.is_absolute() else as_folder(data).place(name).path
    try:
        found: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise LabError(f"weights={name}: {error.strerror or error}") from error
    except Exception as error:  # whatever the unpickler meets in a file that is none of ours
        raise LabError(
            f"weights={name} is not a file of tensors that torch can read ({type(error).__name__})"
        ) from error
    own = model.state_dict()
    last = max(key for key in own if key.startswith("classifier.") and key.endswith(".weight")).removesuffix(".weight")
    wanted = [key for key in own if not key.startswith(last) and "logits" not in key and "log_variance" not in key]
    unfit = [key for key in wanted if key not in found or found[key].shape != own[key].shape]
    if unfit and any(key.startswith(("features", "classifier")) for key in unfit):
        have = tuple(found[unfit[0]].shape) if unfit[0] in found else "nothing"
        raise LabError(f"weights={name} do not fit: {unfit[0]} needs {tuple(own[unfit[0]].shape)}, the file has {have}")
    model.load_state_dict({**own, **{key: found[key] for key in wanted}})


@torch.no_grad()
def probabilities(model: nn.Module, split: Split, setting: Setting) -> Tensor:
    """Mean class probabilities over the method's passes; one deterministic pass if it asks for none."""
    passes = setting["samples"]
    return torch.cat(
        [
            predict(model, x, passes).probabilities if passes else model(x).softmax(-1)
            for x, _ in split.batches(setting["scored"])
        ]
    )


def thresholds(model: nn.Module, split: Split, setting: Setting, entropy: Tensor) -> Tensor:
    """21 thresholds between the extreme entropies of the validation split (of the split itself, if that is it)."""
    other = split.validation if isinstance(split, Tested) else None
    reference = entropy if other is None else predictive_entropy(probabilities(model, other, setting).double())
    return threshold_grid(reference)


def shifted(split: Split) -> Split:
    """The same images under Gaussian noise of a quarter of the range of their values: a shift that nobody trained for."""
    noise = torch.Generator().manual_seed(0)
    collate = split.collate

    def noisy(pixels: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        values, right = collate(pixels, targets) if collate else (pixels, targets)
        moved = values + 0.5 * torch.randn(values.shape, generator=noise).to(values)
        return moved.clamp(-1, 1), right

    return replace(split, collate=noisy)


def evaluate(model: nn.Module, split: Split, setting: Setting) -> dict[str, float]:
    """The figures of a split; of the test split also those after a shift."""
    found = scored(model, split, setting)
    if isinstance(split, Tested):
        moved = scored(model, shifted(split), setting)
        found |= {f"{name} (shifted)": moved[name] for name in ("accuracy", "ece", "pavgpu")}
    return found


def scored(model: nn.Module, split: Split, setting: Setting) -> dict[str, float]:
    """Accuracy, PAvgPU averaged over 21 thresholds (percent), ECE, log loss."""
    p = probabilities(model, split, setting).double()
    right, entropy = p.argmax(1) == split.targets, predictive_entropy(p)
    chosen = p[torch.arange(len(p)), split.targets].clamp_min(1e-12)
    return {
        "accuracy": 100 * float(right.double().mean()),
        "pavgpu": 100 * float(pavgpu(right, entropy, thresholds(model, split, setting, entropy)).score.mean()),
        "ece": 100 * expected_calibration_error(p, split.targets),
        "log_loss": -float(chosen.log().mean()),
    }


def figures(model: nn.Module, data: Data, setting: Setting) -> list[Figure]:
    """PAvgPU over thresholds (Fig. 2a), the reliability diagram, and the learned keep rates layer by layer."""
    split = data.test or data.validation
    p = probabilities(model, split, setting)
    right, entropy = p.argmax(1) == split.targets, predictive_entropy(p.double())
    scores = pavgpu(right, entropy, thresholds(model, split, setting, entropy)).score
    drawn = [
        curves("PAvgPU", "threshold", torch.linspace(0, 1, 21), "PAvgPU", {setting.method: scores}),
        reliability(p, split.targets),
    ]
    return [
        *drawn,
        *(bars(f"Learned keep rates, {name}", "keep", {name: rate}) for name, rate in keep_rates(model).items()),
    ]


METHODS = (
    *rivals(plain, learned),
    Method("lbd-tied", "one learned rate for all layers", learned, {**BAYES, "dropout": "bernoulli-tied"}),
)
NETWORK: dict[str, Value] = {
    "files": 0,
    "plan": "digits",
    "hidden": 64,
    "size": 8,
    "batch_norm": True,
    "weights": "",
    "scored": 250,
}

TASK = Task(
    name="dropout-images",
    summary="accuracy and uncertainty of learned, relaxed and fixed dropout on digits or CIFAR-10",
    score="accuracy",
    better="higher",
    scales={
        "tiny": {**OWN, **NETWORK, "epochs": 15, "batch": 32},
        "small": {**OWN, **NETWORK, "files": 1, "plan": "small", "hidden": 128, "size": 32, "epochs": 6, "batch": 64},
        # Section 3.2.1: VGG19 from ImageNet, 224 pixels, batches of 64, 300 epochs, Adam 1e-5, 10 passes.
        "paper": {
            **OWN,
            **NETWORK,
            "files": 5,
            "plan": "vgg19",
            "hidden": 4096,
            "size": 224,
            "batch_norm": False,
            "epochs": 300,
            "batch": 64,
            "lr": 1e-5,
            "rates_lr": 1e-4,
            "weights": "pretrained/vgg19-dcbb9e9d.pth",
            "scored": 64,
        },
    },
    methods=METHODS,
    load=load,
    build=build,
    evaluate=evaluate,
    figures=figures,
    baseline="regular",
    paper="Boluki et al., Learnable Bernoulli Dropout for Bayesian Deep Learning, section 3.2.1",
)
