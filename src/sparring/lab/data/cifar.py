"""CIFAR-10 and CIFAR-100, python version, read without unpickling anything."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .errors import DataError
from .files import Folder, as_folder
from .pickles import read_pickle
from .records import Images


def cifar10(
    split: str = "train", data: Folder | str | Path | None = None, batches: Sequence[int] = (1, 2, 3, 4, 5)
) -> Images:
    """CIFAR-10: 50,000 (train) or 10,000 (test) images of 3 x 32 x 32 in ten classes.

    Args:
        split: `"train"` or `"test"`.
        data: The data folder; None for SPARRING_DATA.
        batches: Which of the five training files to read, for folders that do not hold them all.
    """
    folder, base = as_folder(data), "cifar10/cifar-10-batches-py"
    names = {"train": [f"data_batch_{i}" for i in batches], "test": ["test_batch"]}.get(split)
    if names is None:
        raise DataError(f"cifar10 has no split {split!r}; use 'train' or 'test'")
    return _images(folder, [f"{base}/{name}" for name in names], "labels", f"{base}/batches.meta", "label_names")


def cifar100(split: str = "train", data: Folder | str | Path | None = None, coarse: bool = False) -> Images:
    """CIFAR-100: 50,000 (train) or 10,000 (test) images of 3 x 32 x 32 in a hundred classes.

    Args:
        split: `"train"` or `"test"`.
        data: The data folder; None for SPARRING_DATA.
        coarse: Take the twenty groups of classes as labels.
    """
    if split not in ("train", "test"):
        raise DataError(f"cifar100 has no split {split!r}; use 'train' or 'test'")
    base, kind = "cifar100/cifar-100-python", "coarse" if coarse else "fine"
    return _images(as_folder(data), [f"{base}/{split}"], f"{kind}_labels", f"{base}/meta", f"{kind}_label_names")


def _images(folder: Folder, names: list[str], labels_key: str, meta: str, classes_key: str) -> Images:
    classes = tuple(_text(name, meta) for name in _entry(_load(folder, meta), classes_key, list, meta))
    images: list[np.ndarray] = []
    labels: list[int] = []
    for name in names:
        batch = _load(folder, name)
        pixels = _entry(batch, "data", np.ndarray, name)
        found = _entry(batch, labels_key, list, name)
        if pixels.ndim != 2 or pixels.shape != (len(found), 3072):
            raise DataError(f"holds pixels of shape {pixels.shape} for {len(found):,} labels, expected (N, 3072)", name)
        for label in found:
            if type(label) is not int or not 0 <= label < len(classes):
                seen = label if type(label) is int else f"of type {type(label).__name__}"
                raise DataError(f"holds a label {seen}, expected 0 to {len(classes) - 1}", name)
        images.append(pixels.reshape(-1, 3, 32, 32))
        labels += found
    if not images:
        raise DataError("no batch was asked for; name at least one of 1 to 5 in batches=")
    return Images(np.concatenate(images), np.array(labels, dtype=np.int64), classes)


def _load(folder: Folder, name: str) -> dict[str, Any]:
    value = read_pickle(folder.read(name), name)
    if not isinstance(value, dict):
        raise DataError(f"holds a {type(value).__name__}, expected a dict", name)
    return {_text(key, name): item for key, item in value.items()}


def _entry(batch: dict[str, Any], key: str, kind: type, file: str) -> Any:
    value = batch.get(key)
    if not isinstance(value, kind):
        raise DataError(f"has no entry {key!r} that is a {kind.__name__}", file)
    return value


def _text(value: Any, file: str) -> str:
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if not isinstance(value, str):
        raise DataError(f"holds {type(value).__name__} where a name belongs", file)
    return value
