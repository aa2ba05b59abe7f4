"""Learned against fixed dropout in segmentation (section 3.2.2): shapes drawn at random, or CamVid road scenes.

Targets of "Learnable Bernoulli Dropout" on CamVid with FC-DenseNet-103, mean IoU / mean PAvgPU in percent: LBD
60.42 / 85.16, Concrete 55.95 / 83.81, Gaussian 54.85 / 85.02, MC dropout 54.40 / 84.39, regular dropout 53.62 / 81.17.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ....losses import cross_entropy
from ....metrics import Confusion, pavgpu, predictive_entropy, threshold_grid
from ....metrics.uncertainty import patch_statistics
from ....nn import keep_rates
from ....objective import Objective
from ....predict import predict
from ...data.camvid import CLASSES, VOID
from ...errors import unknown
from ...models.fc_densenet import FCDenseNet
from ...report.figures import Figure, bars, curves, pictures
from ...task import Data, Setting, Split, Task, Value
from .images import Tested
from .layers import OWN, layer_of, learned, plain, rivals
from .scenes import load


class PixelLogits(nn.Module):
    """A segmentation network with its classes in the last dimension, as losses and `predict` want them."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).movedim(1, -1)


def pixel_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy over an image's labelled pixels, `(B,)`."""
    return cross_entropy(outputs, targets, ignore_index=VOID)


def build(setting: Setting, data: Data) -> nn.Module:
    """An FC-DenseNet whose middle block has the method's dropout, one rate a layer."""
    depth = setting["blocks"]
    layers = (4, 5, 7, 10, 12)[:depth] if setting["deep"] else (2,) * depth
    net = FCDenseNet(
        len(CLASSES) if setting["camvid"] else 3,
        first=setting["first"],
        growth=setting["growth"],
        down=layers,
        middle=setting["middle"],
        middle_dropout=lambda units: layer_of(setting["dropout"], units, setting, channels=True),
    )
    if setting["statistics"] == "image":
        for module in net.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.track_running_stats = False
                module.running_mean = module.running_var = module.num_batches_tracked = None
    elif setting["statistics"] != "running":
        raise unknown("statistics", setting["statistics"], ("image", "running"))
    return PixelLogits(net)


def plain_pixels(model: nn.Module, setting: Setting, data: Data) -> Objective:
    """Pixel cross-entropy and the KL of learned dropout."""
    return plain(model, setting, data, pixel_loss)


def learned_pixels(model: nn.Module, setting: Setting, data: Data) -> Objective:
    """The same with rates by ARM; over batches the joint loss counts, since batch norm follows the dropout."""
    return learned(model, setting, data, pixel_loss, joint=setting["batch"] > 1)


@dataclass(frozen=True)
class Judged:
    """A split's predictions: how often which class was taken for which, and entropy and accuracy patch by patch."""

    counts: Confusion
    entropy: Tensor
    right: Tensor


@torch.no_grad()
def judge(model: nn.Module, split: Split, setting: Setting) -> Judged:
    """Predict every image of a split; patches of `window` x `window` pixels slide by `stride`."""
    counts, entropies, rights = None, [], []
    for x, y in split.batches(setting["batch"]):
        p = probabilities(model, x, setting)
        found = Confusion.of(p.argmax(-1), y, p.shape[-1], VOID)
        counts = found if counts is None else counts + found
        entropy, right, seen = patch_statistics(p.movedim(-1, 1), y, setting["window"], setting["stride"], VOID)
        entropies.append(entropy[seen])
        rights.append(right[seen] > 0.5)
    assert counts is not None
    return Judged(counts, torch.cat(entropies), torch.cat(rights))


def probabilities(model: nn.Module, images: Tensor, setting: Setting) -> Tensor:
    """Class probabilities of each pixel (B, H, W, C), the mean over the method's passes."""
    passes = setting["samples"]
    return predict(model, images, passes).probabilities if passes else model(images).softmax(-1)


def scores_of(model: nn.Module, split: Split, setting: Setting, found: Judged) -> Tensor:
    """PAvgPU at 21 thresholds between the extreme patch entropies of the validation split."""
    other = split.validation if isinstance(split, Tested) else None
    reference = found.entropy if other is None else judge(model, other, setting).entropy
    return pavgpu(found.right, found.entropy, threshold_grid(reference)).score


def evaluate(model: nn.Module, split: Split, setting: Setting) -> dict[str, float]:
    """Pixel accuracy, mean IoU and PAvgPU over patches, averaged over 21 thresholds; all in percent."""
    found = judge(model, split, setting)
    return {
        "mean_iou": 100 * found.counts.mean_iou,
        "accuracy": 100 * found.counts.accuracy,
        "pavgpu": 100 * float(scores_of(model, split, setting, found).mean()),
    }


@torch.no_grad()
def figures(model: nn.Module, data: Data, setting: Setting) -> list[Figure]:
    """PAvgPU over thresholds (Fig. 2b), IoU class by class, learned rates, and maps of truth, prediction and uncertainty."""
    split = data.test or data.validation
    found = judge(model, split, setting)
    names = CLASSES if setting["camvid"] else ("ground", "square", "disc")
    drawn = [
        curves(
            "PAvgPU over patches",
            "threshold",
            torch.linspace(0, 1, 21),
            "PAvgPU",
            {setting.method: scores_of(model, split, setting, found)},
        ),
        bars(
            "IoU by class",
            "IoU",
            {name: [value] for name, value in zip(names, found.counts.iou.nan_to_num(0.0).tolist())},
        ),
        *(bars(f"Learned keep rates, {name}", "keep", {name: rate}) for name, rate in keep_rates(model).items()),
    ]
    images, labels = split.batch(slice(0, setting["drawn"]))
    p = probabilities(model, images, setting)
    step = max(1, labels.shape[-1] // 240)  # a map of 240 columns is enough to see
    for number in range(len(images)):
        panels = {
            "image": ((images[number] + 1) * 127.5).round().clamp(0, 255).byte(),
            "truth": labels[number].where(labels[number] != VOID, -1),
            "prediction": p[number].argmax(-1),
            "uncertainty (entropy)": predictive_entropy(p[number].double()),
        }
        largest = math.log(p.shape[-1])
        note = f"Entropy: white 0, darkest {largest:.2f} nats (all classes alike). Black: not labelled."
        small = {name: m[..., ::step, ::step] for name, m in panels.items()}
        drawn.append(pictures(f"Image {number + 1}", small, names, largest, note))
    return drawn


OWN_SEGMENTATION: dict[str, Value] = {
    **OWN,
    "drop": 0.2,
    "granularity": "layer",
    "camvid": False,
    "size": 32,
    "shrink": 1,
    "window": 2,
    "stride": 1,
    "drawn": 2,
    "blocks": 2,
    "deep": False,
    "first": 8,
    "growth": 4,
    "middle": 4,
    # What batch norm normalises by in evaluation: running means, or each image's own as in training with batches of one.
    "statistics": "running",
}
FULL: dict[str, Value] = {"blocks": 5, "deep": True, "first": 48, "growth": 16, "middle": 15}

TASK = Task(
    name="dropout-segmentation",
    summary="mean IoU and uncertainty of learned, relaxed and fixed dropout on shapes or CamVid",
    score="mean_iou",
    better="higher",
    scales={
        "tiny": {**OWN_SEGMENTATION, "epochs": 6, "batch": 4, "lr": 1e-2, "optimiser": "adam"},
        "small": {
            **OWN_SEGMENTATION,
            "camvid": True,
            "shrink": 4,
            "blocks": 3,
            "middle": 6,
            "growth": 8,
            "first": 16,
            "statistics": "image",
            "epochs": 40,
            "schedule": "cosine",
            "batch": 1,
            "lr": 2e-3,
        },
        # Section 3.2.2: FC-DenseNet-103, rates shared within a layer, batches of one uncropped 480 x 360 image, 700 epochs,
        # RMSProp with decay .995, learning rate 1e-4, sliding windows of 2 x 2. FC-DenseNet's released test.py and train.py
        # normalise by the batch at hand in evaluation too (batch_norm_use_averages=False).
        "paper": {
            **OWN_SEGMENTATION,
            **FULL,
            "camvid": True,
            "statistics": "image",
            "epochs": 700,
            "batch": 1,
            "optimiser": "rmsprop",
            "smoothing": 0.995,
            "lr": 1e-4,
            "rates_lr": 1e-3,
        },
    },
    methods=rivals(plain_pixels, learned_pixels),
    load=load,
    build=build,
    evaluate=evaluate,
    figures=figures,
    baseline="regular",
    paper="Boluki et al., Learnable Bernoulli Dropout for Bayesian Deep Learning, section 3.2.2",
)
