"""Images for ensembles: digits, MNIST, CIFAR-10, CIFAR-100 and Tiny-ImageNet, pixels in [0, 1]."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...data.cifar import cifar10, cifar100
from ...data.digits import handwritten
from ...data.idx import mnist
from ...data.records import Images
from ...data.tinyimagenet import tiny_imagenet
from ...task import Data, Setting, Split


@dataclass(frozen=True)
class Attacked(Split):
    """A split that is attacked when it is evaluated; validation splits are not, they are scored every epoch.

    Args:
        helpers: the attacker's own models, shared with `Data.helpers`.
    """

    helpers: dict[str, nn.Module] = field(default_factory=dict)


def digits(setting: Setting) -> Data:
    """Scikit-learn's 1,797 digits of 8 x 8 pixels: 1,000 to train, 297 to validate, 500 to test."""
    images, labels = handwritten()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    inputs = (torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16)[order]
    targets = torch.tensor(labels)[order]
    helpers: dict[str, nn.Module] = {}
    return Data(
        train=Split(inputs[:1000], targets[:1000]),
        validation=Split(inputs[1000:1297], targets[1000:1297]),
        test=Attacked(inputs[1297:], targets[1297:], helpers=helpers),
        extra={"classes": 10, "channels": 1, "size": 8},
        helpers=helpers,
    )


def painted(setting: Setting, size: int = 32, channels: int = 3) -> Data:
    """Digits enlarged and painted in random colours: the shapes of the real images where their files are not at hand."""
    data = digits(setting)
    assert data.test is not None
    colours = torch.Generator().manual_seed(0)

    def paint(split: Split, count: int) -> tuple[Tensor, Tensor]:
        large = nn.functional.interpolate(split.inputs[:count], size=(size, size), mode="bilinear")
        shade = 0.5 + 0.5 * torch.rand(count, channels, 1, 1, generator=colours)
        return large * shade, split.targets[:count]

    helpers: dict[str, nn.Module] = {}
    return Data(
        train=Split(*paint(data.train, setting["examples"]), collate=shifted if channels == 3 else None),
        validation=Split(*paint(data.validation, setting["test_examples"] // 2)),
        test=Attacked(*paint(data.test, setting["test_examples"]), helpers=helpers),
        extra={"classes": 10, "channels": channels, "size": size},
        helpers=helpers,
    )


def scaled(images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Bytes as numbers from 0 to 1: a whole data set stays in bytes, a quarter of the memory."""
    return images.float() / 255, targets


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


def augmented(images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """A training batch: scaled, then shifted and mirrored."""
    return shifted(*scaled(images, targets))


def assembled(train: Images, test: Images, setting: Setting, collate: Any = augmented) -> Data:
    """The first `examples` training images (0: all), a tenth of them to validate, and the first `test_examples`."""
    parts = []
    for found, count in ((train, setting["examples"]), (test, setting["test_examples"])):
        images = torch.from_numpy(found.images[: count or None])
        labels = torch.from_numpy(found.labels[: count or None])
        parts.append((images[:, None] if images.dim() == 3 else images, labels))
    (inputs, targets), held = parts[0], len(parts[0][1]) // 10
    helpers: dict[str, nn.Module] = {}
    return Data(
        train=Split(inputs[held:], targets[held:], collate),
        validation=Split(inputs[:held], targets[:held], scaled),
        test=Attacked(*parts[1], scaled, helpers=helpers),
        extra={"classes": len(train.classes), "channels": inputs.shape[1], "size": inputs.shape[-1]},
        helpers=helpers,
    )


def load_mnist(setting: Setting) -> Data:
    """MNIST: the first training images, not shifted; enlarged grey digits at `tiny`."""
    if setting.scale == "tiny":
        return painted(setting, 28, 1)
    return assembled(mnist("train", setting.data), mnist("test", setting.data), setting, scaled)


def load_cifar10(setting: Setting) -> Data:
    """CIFAR-10: only the training files that `examples` needs are read."""
    if setting.scale == "tiny":
        return painted(setting)
    files = range(1, 2 + (setting["examples"] - 1) // 10_000) if setting["examples"] else range(1, 6)
    return assembled(cifar10("train", setting.data, files), cifar10("test", setting.data), setting)


def load_cifar100(setting: Setting) -> Data:
    """CIFAR-100 with its hundred classes."""
    if setting.scale == "tiny":
        return painted(setting)
    return assembled(cifar100("train", setting.data), cifar100("test", setting.data), setting)


def load_tiny_imagenet(setting: Setting) -> Data:
    """Tiny-ImageNet: the published validation images are the test, whose labels are public."""
    if setting.scale == "tiny":
        return painted(setting, 64)
    each = -(-setting["examples"] // 200)
    found = tiny_imagenet("train", setting.data, each), tiny_imagenet("val", setting.data)
    train, test = (part.take(np.random.default_rng(0).permutation(len(part))) for part in found)  # files lie by class
    return assembled(train, test, setting)


LOAD: dict[str, Callable[[Setting], Data]] = {
    "digits-ensemble": digits,
    "mnist-ensemble": load_mnist,
    "cifar10-ensemble": load_cifar10,
    "cifar100-ensemble": load_cifar100,
    "tiny-imagenet-ensemble": load_tiny_imagenet,
}
