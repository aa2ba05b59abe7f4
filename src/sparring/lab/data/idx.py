"""MNIST in its native idx format."""

import struct
from pathlib import Path

import numpy as np

from .errors import DataError
from .files import Folder, as_folder
from .records import Images

TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def parse_idx(raw: bytes, file: str = "idx data") -> np.ndarray:
    """The array an idx file holds: two zero bytes, a type, the number of dimensions, their sizes, the values.

    Example:
        >>> parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9]))
        array([7, 8, 9], dtype=uint8)

    Args:
        raw: The unpacked bytes.
        file: Name for messages.
    """
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] not in TYPES:
        raise DataError("is not an idx file (its first four bytes are wrong)", file)
    kind, rank = np.dtype(TYPES[raw[2]]), raw[3]
    start = 4 + 4 * rank
    if len(raw) < start:
        raise DataError(f"cut short: {len(raw)} bytes, its header alone has {start}", file)
    shape = struct.unpack(f">{rank}I", raw[4:start])
    count = 1
    for side in shape:
        count *= side  # Python integers: a hostile header cannot overflow
    if len(raw) - start != count * kind.itemsize:
        raise DataError(
            f"holds {len(raw) - start:,} bytes of values, its header promises {count * kind.itemsize:,}", file
        )
    return np.frombuffer(raw, kind, offset=start).reshape(shape).astype(kind.newbyteorder("="))


def mnist(split: str = "train", data: Folder | str | Path | None = None) -> Images:
    """MNIST: 60,000 (train) or 10,000 (test) digits of 28 x 28.

    Args:
        split: `"train"` or `"test"`.
        data: The data folder; None for SPARRING_DATA.
    """
    stem = {"train": "train", "test": "t10k"}.get(split)
    if stem is None:
        raise DataError(f"mnist has no split {split!r}; use 'train' or 'test'")
    folder = as_folder(data)
    names = f"mnist/{stem}-images-idx3-ubyte", f"mnist/{stem}-labels-idx1-ubyte"
    images, labels = (parse_idx(folder.read(name), name) for name in names)
    if images.ndim != 3 or images.dtype != np.uint8:
        raise DataError(f"holds {images.dtype} values of shape {images.shape}, expected uint8 images", names[0])
    if labels.shape != images.shape[:1]:
        raise DataError(f"holds labels of shape {labels.shape} for {len(images):,} images", names[1])
    if labels.size and labels.max() > 9:
        raise DataError(f"holds the label {labels.max()}, expected 0 to 9", names[1])
    return Images(images, labels.astype(np.int64), tuple("0123456789"))
