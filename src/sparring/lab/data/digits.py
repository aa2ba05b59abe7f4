"""scikit-learn's handwritten digits, the one data set that is always there: as images and as sequences."""

import numpy as np

from .errors import DataError
from .records import Images, holdout

TEST = 0.2


def handwritten() -> tuple[np.ndarray, np.ndarray]:
    """The 1,797 digits as they come: 64 values of 0 to 16 each, and labels."""
    # Here, since scikit-learn takes a second that every command would wait for.
    from sklearn.datasets import load_digits

    return load_digits(return_X_y=True)


def digits(split: str = "train", seed: int = 0) -> Images:
    """1,797 digits of 8 x 8 with values 0 to 16 scaled to 0 to 255: 1,438 to train, 359 to test.

    Example:
        >>> digits("train").images.shape, digits("test").images.shape
        ((1438, 8, 8), (359, 8, 8))

    Args:
        split: `"train"`, `"test"` or `"all"`.
        seed: Of the split.
    """
    values, labels = handwritten()
    images = np.round(values.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    whole = Images(images, labels.astype(np.int64), tuple("0123456789"))
    if split == "all":
        return whole
    if split not in ("train", "test"):
        raise DataError(f"digits has no split {split!r}; use 'train', 'test' or 'all'")
    train, test = holdout(len(whole), TEST, seed)
    return whole.take(train if split == "train" else test)


def sequences(images: np.ndarray, by: str = "rows", permutation: int | None = None) -> np.ndarray:
    """Images as sequences of float32 between 0 and 1: (N, T, F).

    Example:
        >>> sequences(digits("test").images).shape, sequences(digits("test").images, by="pixels").shape
        ((359, 8, 8), (359, 64, 1))

    Args:
        images: uint8, (N, H, W).
        by: `"rows"`: one row a step; `"pixels"`: one pixel a step, row after row.
        permutation: Seed of one fixed order of the pixels, the permuted variant; only with `by="pixels"`.
    """
    if images.ndim != 3:
        raise DataError(f"images have shape {images.shape}; expected (N, H, W)")
    values = images.astype(np.float32) / 255
    if by == "rows":
        if permutation is not None:
            raise DataError("a permutation needs by='pixels'")
        return values
    if by != "pixels":
        raise DataError(f"by is {by!r}; use 'rows' or 'pixels'")
    flat = values.reshape(len(values), -1, 1)
    if permutation is None:
        return flat
    return np.ascontiguousarray(flat[:, np.random.default_rng(permutation).permutation(flat.shape[1])])
