"""`images`: a folder for each class, or a table of paths and labels."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...data.digits import digits
from ...data.errors import DataError
from ...data.own.pictures import Listed, in_folders, in_table, pixels
from ...data.own.places import locate
from ...data.own.tables import read_table
from ...task import Data, Setting, Split, Task, Value
from . import judge
from .methods import around_input
from .models import chosen, image_menu
from .rows import CELLS, FILES, PARTS, Source, contents, divide, unchanged

SAMPLE = "scikit-learn's 8 x 8 digits"


def listed(setting: Setting, data: Path | None) -> dict[str, Listed]:
    """The images that `train`, `validation` and `test` name."""
    found = {}
    for part in PARTS:
        if setting[part]:
            path = locate(setting[part], data)
            found[part] = (
                in_folders(path)
                if path.is_dir()
                else in_table(read_table(path, *(setting[name] for name in CELLS)), setting["image"], setting["label"])
            )
    return found


def load(setting: Setting) -> Data:
    """Images as numbers from 0 to 1, (N, C, H, W)."""
    if not setting["train"]:
        return sample(setting)
    unchanged(setting)
    found = listed(setting, setting.data)
    sources = {part: Source(images.file, images.labels, blaming(images)) for part, images in found.items()}
    division = divide(sources, setting)
    colour, splits = setting["colour"], list[Split]()
    shape: tuple[int, ...] = ()
    for part, (of, rows) in division.rows.items():
        values = pixels([found[of].paths[row] for row in rows], setting["size"], colour)
        labels = [division.classes.index(found[of].labels[row]) for row in rows]
        colour = "grey" if values.shape[1] == 1 else "rgb"  # what the training images are decides for the others
        shape = shape or values.shape[1:]
        if values.shape[1:] != shape:
            sizes = f"{values.shape[-1]} x {values.shape[-2]} pixels, the training images {shape[-1]} x {shape[-2]}"
            raise DataError(f"has {sizes}; write --set size={min(shape[1:])}", found[of].file)
        splits.append(part_of(part, torch.from_numpy(values), labels))
    record = {**division.record, "pixels": list(shape)}
    train, validation, test = splits
    return Data(train, validation, test, extra={"classes": division.classes}, record=record)


def blaming(images: Listed) -> Any:
    """How to blame an image."""
    return lambda row, reason: DataError(reason, images.paths[row])


def part_of(part: str, values: Tensor, labels: Any) -> Split:
    """One split; pixels are scaled here, 255 to 1."""
    return (judge.Final if part == "test" else Split)(values.float() / 255, torch.as_tensor(labels))


def sample(setting: Setting) -> Data:
    """The embedded example."""
    whole = digits("all")
    source = Source(SAMPLE, [str(label) for label in whole.labels], lambda row, reason: DataError(reason))
    division = divide({"train": source}, setting)
    images = torch.from_numpy(whole.images)[:, None]
    splits = [part_of(part, images[rows], whole.labels[rows]) for part, (_, rows) in division.rows.items()]
    train, validation, test = splits
    return Data(
        train, validation, test, extra={"classes": division.classes}, record={**division.record, "sample": SAMPLE}
    )


def build(setting: Setting, data: Data) -> nn.Module:
    """From the menu, or the user's own."""
    return chosen(image_menu(), setting, data)


IMAGES: dict[str, Value] = {
    **FILES,
    **CELLS,
    "image": "image",
    "label": "label",
    "size": 0,
    "colour": "auto",
    "model": "cnn",
    "dropout": 0.2,
    "lr": 2e-3,
    "schedule": "cosine",
    "batch": 64,
    "attack": 0.06,
    "attacked": 100,
}

TASKS = (
    Task(
        name="images",
        summary="your own images, a folder for each class: --set train=FOLDER",
        score="accuracy",
        better="higher",
        scales={
            "tiny": {**IMAGES, "width": 8, "epochs": 30},
            "small": {**IMAGES, "width": 32, "epochs": 30, "attacked": 500},
        },
        methods=around_input(radius=0.06, distance=1.0),
        load=load,
        build=build,
        evaluate=judge.classes,
        figures=judge.figures,
        derive=contents(),
    ),
)
