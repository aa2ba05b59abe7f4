"""Images of the user's own: a folder with a folder for each class, or a table of paths and labels."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..errors import DataError
from .tables import Table

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm")
SPLITS = {"train", "training", "test", "testing", "val", "valid", "validation"}
GREY = ("1", "L", "LA", "I;16", "I", "F")


@dataclass(frozen=True)
class Listed:
    """Paths of images with the names of their classes."""

    paths: list[Path]
    labels: list[str]
    file: str

    def __len__(self) -> int:
        return len(self.paths)


def in_folders(root: Path) -> Listed:
    """The images of `root/CLASS/*`, at any depth below the class."""
    classes = sorted(p for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))
    if not classes:
        raise DataError("holds no folder; one for each class is needed, with images inside", root)
    if len(classes) > 1 and {p.name.lower() for p in classes} <= SPLITS:
        first = next((p for p in classes if p.name.lower().startswith("train")), classes[0])
        raise DataError(f"holds splits, not classes; write --set train={first} and --set test=...", root)
    paths, labels = [], []
    for folder in classes:
        found = [p for p in sorted(folder.rglob("*")) if p.suffix.lower() in SUFFIXES and not p.name.startswith(".")]
        if not found:
            raise DataError(f"the class folder holds no image ({', '.join(SUFFIXES)})", folder)
        paths += found
        labels += [folder.name] * len(found)
    return Listed(paths, labels, str(root))


def in_table(table: Table, image: str, label: str) -> Listed:
    """The images that a table lists; their paths are seen from the table's folder."""
    root = Path(table.file).parent
    names, labels = table.column(image, "image"), table.column(label, "label")
    paths = [root / name for name in names]
    for row, path in enumerate(paths):
        if not names[row] or not path.is_file():
            raise table.error(row, f"names the image {names[row]!r}, which is not there")
        if not labels[row]:
            raise table.error(row, f"has no label in column {label!r}")
    return Listed(paths, labels, table.file)


def pixels(paths: Sequence[Path], size: int = 0, colour: str = "auto") -> np.ndarray:
    """The images as uint8, (N, 1 or 3, H, W).

    Args:
        paths: image files.
        size: scale every image to a square of this many pixels; 0 keeps them, and all must be of one size.
        colour: "grey", "rgb", or "auto": grey where every image is.
    """
    try:
        from PIL import Image
    except ImportError:
        raise DataError("reading images needs Pillow: pip install 'sparring[lab]'") from None
    if colour not in ("auto", "grey", "rgb"):
        raise DataError(f"colour={colour!r} does not fit; auto, grey and rgb do")
    found: list[np.ndarray] = []
    first: tuple[int, int] | None = None
    grey = colour != "rgb"
    for path in paths:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # a bomb, a damaged header
                with Image.open(path) as opened:
                    mode = opened.mode
                    wanted = "L" if colour == "grey" or (grey and mode in GREY) else "RGB"
                    if mode.startswith("I") or mode == "F":
                        raise DataError(f"has pixels of kind {mode!r}; save it with 8 bits a channel", path)
                    image = opened.convert(wanted)
        except DataError:
            raise
        except Exception as error:  # Pillow raises whatever its format's reader stumbles over
            raise DataError(f"cannot be read as an image ({error})", path) from None
        if size:
            image = image.resize((size, size), Image.Resampling.BILINEAR)
        if first is None:
            first = image.size
        elif image.size != first:
            sizes = f"{image.size[0]} x {image.size[1]} pixels, {paths[0]} {first[0]} x {first[1]}"
            raise DataError(f"has {sizes}; write --set size={min(first)} to scale all images to that square", path)
        if grey and wanted == "RGB":  # the first image with colours: those before it were grey
            grey, found = False, [np.repeat(seen, 3, 0) for seen in found]
        array = np.asarray(image, dtype=np.uint8)
        found.append(array[None] if wanted == "L" else np.moveaxis(array, -1, 0))
    return np.stack(found)
