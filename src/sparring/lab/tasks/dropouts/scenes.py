"""Images and a class for each pixel: shapes drawn at random, or CamVid's road scenes made smaller."""

import torch
from torch import Tensor, nn

from ...data.camvid import VOID, Scenes, camvid
from ...task import Data, Setting, Split
from .images import Tested


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
    """Generated shapes, or CamVid's three lists, made smaller by `shrink`."""
    size = setting["size"]
    if setting["camvid"]:
        train, validation, test = (
            scenes(camvid(name, setting.data), setting["shrink"]) for name in ("train", "val", "test")
        )
    else:
        train, validation, test = shapes(64, size, 0), shapes(32, size, 1), shapes(32, size, 2)
    quiet = Split(validation.inputs, validation.targets)
    return Data(train, quiet, Tested(test.inputs, test.targets, validation=quiet))


def scenes(found: Scenes, shrink: int) -> Split:
    """Road scenes as floats around zero: means over squares of `shrink` pixels, with the label of each square's middle."""
    images = torch.stack([mean_pixels(torch.from_numpy(image), shrink) for image in found.images])
    height, width = images.shape[2:]
    labels = found.labels[:, shrink // 2 :: shrink, shrink // 2 :: shrink][:, :height, :width]
    return Split(images, torch.from_numpy(labels.copy()).long(), mirrored)


def mean_pixels(image: Tensor, shrink: int) -> Tensor:
    """One image of bytes (3, H, W), made smaller. Every n-th pixel instead would tear poles and fences to dots."""
    return nn.functional.avg_pool2d(image.float() / 127.5 - 1, shrink)
