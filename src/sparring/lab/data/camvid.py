"""CamVid road scenes in the SegNet split: png images and png annotations."""

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .errors import DAMAGE, DataError
from .files import Folder, as_folder

CLASSES = (
    "sky",
    "building",
    "pole",
    "road",
    "pavement",
    "tree",
    "sign",
    "fence",
    "car",
    "pedestrian",
    "cyclist",
)
VOID = 11
LARGEST = 1 << 25  # pixels of an image


@dataclass(frozen=True)
class Scenes:
    """Images and a class for each pixel.

    Args:
        images: uint8, (N, 3, H, W).
        labels: uint8, (N, H, W): 0 to 10, and 11 where nothing is known.
        names: The files.
    """

    images: np.ndarray
    labels: np.ndarray
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.images)


def camvid(split: str = "train", data: Folder | str | Path | None = None) -> Scenes:
    """367 (train), 101 (val) or 233 (test) scenes of 360 x 480, or those of them the folder's lists name.

    Args:
        split: `"train"`, `"val"` or `"test"`.
        data: The data folder; None for SPARRING_DATA.
    """
    if split not in ("train", "val", "test"):
        raise DataError(f"camvid has no split {split!r}; use 'train', 'val' or 'test'")
    folder, listing = as_folder(data), f"camvid/CamVid/{split}.txt"
    wanted: list[tuple[int, str, str]] = []
    for number, line in folder.lines(listing):
        if line.strip():
            names = [name.removeprefix("/SegNet/CamVid/") for name in line.split()]
            if len(names) != 2 or any(".." in name or name.startswith("/") for name in names):
                raise DataError("is not an image and an annotation below /SegNet/CamVid/", listing, number)
            wanted.append((number, names[0], names[1]))
    needed = {f"camvid/CamVid/{name}" for _, *names in wanted for name in names}
    raw = {name: body for name, body in folder.walk("camvid/CamVid") if name in needed}
    images, labels = [], []
    for number, image, label in wanted:
        for name in (image, label):
            if f"camvid/CamVid/{name}" not in raw:
                raise DataError(f"names {name}, which is not in the folder", listing, number)
        images.append(_png(raw[f"camvid/CamVid/{image}"], image, "RGB").transpose(2, 0, 1))
        labels.append(_png(raw[f"camvid/CamVid/{label}"], label, "L"))
        if labels[-1].max(initial=0) > VOID:
            raise DataError(f"holds the class {labels[-1].max()}, expected 0 to {VOID}", label)
        if images[-1].shape[1:] != labels[-1].shape or images[-1].shape != images[0].shape:
            raise DataError(f"has the size {labels[-1].shape}, its image {images[-1].shape[1:]}", label)
    if not images:
        raise DataError("names no scene", listing)
    return Scenes(np.stack(images), np.stack(labels), tuple(name for _, name, _ in wanted))


def _png(raw: bytes, file: str, mode: str) -> np.ndarray:
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError(
            "needs pillow to be read; pip install 'sparring[lab]' brings it with matplotlib", file
        ) from error
    try:
        with Image.open(io.BytesIO(raw), formats=["PNG"]) as image:
            if image.width * image.height > LARGEST:
                raise DataError(f"has {image.width} x {image.height} pixels; refused as a decompression bomb", file)
            if mode == "L" and image.mode not in ("L", "P", "1"):
                raise DataError(f"is an annotation in mode {image.mode}, expected one number a pixel", file)
            pixels = image if image.mode in (mode, "P") and mode == "L" else image.convert(mode)
            return np.array(pixels, dtype=np.uint8)
    except DataError:
        raise
    except (OSError, SyntaxError, Image.DecompressionBombError, *DAMAGE) as error:
        raise DataError(f"is not a whole png ({error})", file) from error
