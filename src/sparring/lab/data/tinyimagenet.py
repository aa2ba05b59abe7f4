"""Tiny-ImageNet in its published folders: 200 classes, 64 x 64 jpeg images."""

import io
from pathlib import Path

import numpy as np

from .errors import DAMAGE, DataError
from .files import Folder, as_folder
from .records import Images

BASE, SIZE = "tiny-imagenet/tiny-imagenet-200", 64


def tiny_imagenet(split: str = "train", data: Folder | str | Path | None = None, each: int = 0) -> Images:
    """Tiny-ImageNet: 100,000 images (train, 500 a class) or 10,000 (val, 50 a class; the test labels are not public).

    Args:
        split: `"train"` (`train/WNID/images/*.JPEG`) or `"val"` (`val/images/*.JPEG` and `val/val_annotations.txt`).
        data: The data folder; None for SPARRING_DATA.
        each: Only so many images of each class, the first ones by name; 0: all.
    """
    if split not in ("train", "val"):
        raise DataError(f"tiny-imagenet has no split {split!r}; use 'train' or 'val'")
    folder = as_folder(data)
    classes = tuple(line.strip() for _, line in folder.lines(f"{BASE}/wnids.txt") if line.strip())
    if len(set(classes)) != len(classes) or not classes:
        raise DataError(f"lists {len(classes)} classes, {len(set(classes))} of them different", f"{BASE}/wnids.txt")
    place = {name: i for i, name in enumerate(classes)}
    known = _annotations(folder, place) if split == "val" else {}
    found: list[list[tuple[str, np.ndarray]]] = [[] for _ in classes]
    for name, raw in folder.walk(f"{BASE}/{split}"):
        parts = name.removeprefix(f"{BASE}/{split}/").split("/")
        if not parts[-1].lower().endswith((".jpeg", ".jpg")):
            continue
        label = known.get(parts[-1]) if split == "val" else place.get(parts[0])
        if label is None:
            where = "val_annotations.txt does not name it" if split == "val" else f"{parts[0]} is not in wnids.txt"
            raise DataError(f"is an image without a class ({where})", name)
        found[label].append((name, _decoded(raw, name)))
    images: list[np.ndarray] = []
    labels: list[int] = []
    for label, items in enumerate(found):
        if not items:
            raise DataError(f"holds no image of class {classes[label]}, which wnids.txt lists", f"{BASE}/{split}")
        chosen = sorted(items, key=lambda item: item[0])[: each or None]
        images += [image for _, image in chosen]
        labels += [label] * len(chosen)
    return Images(np.stack(images), np.array(labels, dtype=np.int64), classes)


def _annotations(folder: Folder, place: dict[str, int]) -> dict[str, int]:
    """Class of each validation image by file name."""
    name, found = f"{BASE}/val/val_annotations.txt", {}
    for number, line in folder.lines(name):
        fields = line.split("\t")
        if len(fields) < 2 or fields[1] not in place:
            raise DataError("is not a file name and a class of wnids.txt", name, number)
        found[fields[0]] = place[fields[1]]
    return found


def _decoded(raw: bytes, file: str) -> np.ndarray:
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError(
            "needs pillow to be read; pip install 'sparring[lab]' brings it with matplotlib", file
        ) from error
    try:
        with Image.open(io.BytesIO(raw), formats=["JPEG"]) as image:
            if image.size != (SIZE, SIZE):
                raise DataError(f"has {image.width} x {image.height} pixels, expected {SIZE} x {SIZE}", file)
            return np.array(image.convert("RGB"), dtype=np.uint8).transpose(2, 0, 1)
    except DataError:
        raise
    except (OSError, SyntaxError, Image.DecompressionBombError, *DAMAGE) as error:
        raise DataError(f"is not a whole jpeg ({error})", file) from error
