"""Learned against fixed dropout in segmentation (section 3.2.2): shapes drawn at random, or CamVid road scenes.

Targets of "Learnable Bernoulli Dropout" on CamVid with FC-DenseNet-103, mean IoU / mean PAvgPU in percent: LBD
60.42 / 85.16, Concrete 55.95 / 83.81, Gaussian 54.85 / 85.02, MC dropout 54.40 / 84.39, regular dropout 53.62 / 81.17.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ...losses import cross_entropy
from ...metrics import Confusion, pavgpu, threshold_grid
from ...metrics.uncertainty import patch_statistics
from ...nn import BernoulliDropout, ConcreteDropout, GaussianDropout
from ...objective import Objective
from ...predict import predict
from ...recipes.learned import learnable_bernoulli
from ..data.camvid import CLASSES, VOID, Scenes, camvid
from ..models.fc_densenet import FCDenseNet
from ..task import Data, Method, Setting, Split, Task, Value

MIDDLE: dict[str, Callable[[int], nn.Module]] = {
    "fixed": lambda units: nn.Dropout2d(0.2),
    "bernoulli": lambda units: BernoulliDropout(1, keep=0.8),
    "concrete": lambda units: ConcreteDropout(1, p=0.2),
    "gaussian": lambda units: GaussianDropout(1, p=0.2, learn=True),
}


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


def mirrored(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Each image mirrored half of the time, the paper's only augmentation."""
    flip = torch.rand(len(images)) < 0.5
    return (
        torch.where(flip[:, None, None, None], images.flip(-1), images),
        torch.where(flip[:, None, None], labels.flip(-1), labels),
    )


def shapes(count: int, size: int, seed: int) -> Split:
    """Noisy images with a bright square and a dark disc on a grey ground: classes 0, 1, 2, and a void rim."""
    generator = torch.Generator().manual_seed(seed)
    rows, columns = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    images = 0.4 * torch.randn(count, 3, size, size, generator=generator)
    labels = torch.zeros(count, size, size, dtype=torch.long)
    for image, label in zip(images, labels):
        y, x, v, u = torch.randint(size // 4, 3 * size // 4, (4,), generator=generator).tolist()
        square = ((rows - y).abs() <= size // 6) & ((columns - x).abs() <= size // 6)
        disc = (rows - v) ** 2 + (columns - u) ** 2 <= (size // 5) ** 2
        for mask, level, kind in ((square, 0.8, 1), (disc, -0.8, 2)):
            image[:, mask] += level
            label[mask] = kind
        label[0], label[-1] = VOID, VOID
    return Split(images, labels, mirrored)


def load(setting: Setting) -> Data:
    """Generated shapes, or CamVid's three lists, every `shrink`-th pixel."""
    if not setting["camvid"]:
        size = setting["size"]
        return Data(shapes(64, size, 0), still(shapes(32, size, 1)), still(shapes(32, size, 2)))
    parts = [scenes(camvid(name, setting.data), setting["shrink"]) for name in ("train", "val", "test")]
    return Data(parts[0], still(parts[1]), still(parts[2]))


def scenes(found: Scenes, shrink: int) -> Split:
    """Road scenes as floats around zero."""
    images = torch.from_numpy(found.images[:, :, ::shrink, ::shrink].copy()).float() / 127.5 - 1
    return Split(images, torch.from_numpy(found.labels[:, ::shrink, ::shrink].copy()).long(), mirrored)


def still(split: Split) -> Split:
    """The same examples without augmentation."""
    return Split(split.inputs, split.targets)


def build(setting: Setting, data: Data) -> nn.Module:
    """An FC-DenseNet whose middle block has the method's dropout, one rate a layer."""
    depth = setting["blocks"]
    layers = (4, 5, 7, 10, 12)[:depth] if setting["deep"] else (2,) * depth
    return PixelLogits(
        FCDenseNet(
            len(CLASSES) if setting["camvid"] else 3,
            first=setting["first"],
            growth=setting["growth"],
            down=layers,
            middle=setting["middle"],
            middle_dropout=MIDDLE[setting["dropout"]],
        )
    )


def objective(model: nn.Module, setting: Setting, data: Data) -> Objective:
    """Pixel cross-entropy; learned rates by ARM, with the batch's joint loss since batch norm follows the dropout."""
    if setting["dropout"] == "bernoulli":
        return learnable_bernoulli(model, pixel_loss, joint=setting["batch"] > 1)
    return Objective(model, pixel_loss)


@torch.no_grad()
def evaluate(model: nn.Module, split: Split, setting: Setting) -> dict[str, float]:
    """Pixel accuracy, mean IoU and PAvgPU over 2 x 2 patches, averaged over 21 thresholds; all in percent."""
    passes, counts = setting["samples"], None
    entropies, rights = [], []
    for x, y in split.batches(setting["batch"]):
        p = predict(model, x, passes).probabilities if passes else model(x).softmax(-1)
        found = Confusion.of(p.argmax(-1), y, p.shape[-1], VOID)
        counts = found if counts is None else counts + found
        entropy, right, seen = patch_statistics(p.movedim(-1, 1), y, setting["window"], setting["window"], VOID)
        entropies.append(entropy[seen])
        rights.append(right[seen] > 0.5)
    assert counts is not None
    entropy, right = torch.cat(entropies), torch.cat(rights)
    score = pavgpu(right, entropy, threshold_grid(entropy)).score.mean()
    return {
        "mean_iou": 100 * counts.mean_iou,
        "accuracy": 100 * counts.accuracy,
        "pavgpu": 100 * float(score),
    }


OWN: dict[str, Value] = {
    "dropout": "fixed", "samples": 10, "camvid": False, "size": 32, "shrink": 1, "window": 2,
    "blocks": 2, "deep": False, "first": 8, "growth": 4, "middle": 4,
}  # fmt: skip
FULL: dict[str, Value] = {"blocks": 5, "deep": True, "first": 48, "growth": 16, "middle": 15}

TASKS = (
    Task(
        name="dropout-segmentation",
        summary="mean IoU and uncertainty of learned, relaxed and fixed dropout on shapes or CamVid",
        score="mean_iou",
        better="higher",
        scales={
            "tiny": {**OWN, "epochs": 6, "batch": 4, "lr": 1e-2, "optimiser": "adam"},
            "small": {**OWN, "camvid": True, "shrink": 4, "blocks": 3, "middle": 6, "growth": 8, "first": 16,
                      "epochs": 10, "batch": 1, "lr": 2e-3},
            "paper": {**OWN, **FULL, "camvid": True, "epochs": 700, "batch": 1, "optimiser": "rmsprop",
                      "smoothing": 0.995, "lr": 1e-4, "rates_lr": 1e-3},
        },
        methods=(
            Method("regular", "fixed dropout, deterministic evaluation", objective, {"samples": 0}),
            Method("mc", "fixed dropout, Monte-Carlo evaluation", objective),
            Method("lbd", "learnable Bernoulli dropout by ARM", objective, {"dropout": "bernoulli"}),
            Method("concrete", "Concrete dropout", objective, {"dropout": "concrete"}),
            Method("gaussian", "Gaussian dropout", objective, {"dropout": "gaussian"}),
        ),
        load=load,
        build=build,
        evaluate=evaluate,
        baseline="regular",
        paper="Boluki et al., Learnable Bernoulli Dropout for Bayesian Deep Learning, section 3.2.2",
    ),
)  # fmt: skip
