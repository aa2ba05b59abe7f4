"""Training, validation and test rows where the user has only one file: made once, the same everywhere, and recorded.

>>> parts = split([0] * 8 + [1] * 4, validation=0.25, test=0.25, seed=0)
>>> [len(part) for part in parts]
[6, 3, 3]
"""

from collections.abc import Sequence

import numpy as np

from ..errors import DataError


def split(
    labels: Sequence[int] | int, validation: float, test: float, seed: int, names: Sequence[str] = (), file: str = ""
) -> tuple[list[int], list[int], list[int]]:
    """Rows to train, to validate and to test with, each class in its share (at least one row where a share is asked).

    Args:
        labels: the class of every row, or only how many rows there are (no classes).
        validation: share of the rows; 0 makes no such part.
        test: the same.
        seed: of the shuffle.
        names: of the classes, for errors.
        file: for errors.
    """
    if not (0 <= validation < 1 and 0 <= test < 1 and validation + test < 1):
        raise DataError(f"validation_share={validation} and test_share={test} leave nothing to train on")
    classes = np.zeros(labels, dtype=np.int64) if isinstance(labels, int) else np.asarray(labels)
    random, parts = np.random.default_rng(seed), ([], [], [])  # type: ignore[var-annotated]
    need = 1 + (validation > 0) + (test > 0)
    for number in np.unique(classes):
        rows = random.permutation(np.flatnonzero(classes == number))
        if len(rows) < need:
            what = f"class {names[int(number)]!r} has" if names else "there are"
            raise DataError(
                f"{what} {len(rows)} example(s), splitting needs {need}; add some, or give --set validation=FILE and test=FILE",
                file or None,
            )
        held = [max(1, round(share * len(rows))) if share else 0 for share in (validation, test)]
        if sum(held) >= len(rows):
            held = [min(1, count) for count in held]
        first, second = held[0], held[0] + held[1]
        for part, chosen in zip(parts, (rows[second:], rows[:first], rows[first:second])):
            part.extend(chosen.tolist())
    train, valid, final = (sorted(part) for part in parts)
    return train, valid, final


def few(labels: Sequence[int], most: int, seed: int) -> list[int]:
    """At most `most` rows with every class in its share; all of them where `most` is 0.

    >>> few([0, 0, 0, 0, 1, 1], 3, seed=0)
    [2, 3, 5]
    """
    if not most or most >= len(labels):
        return list(range(len(labels)))
    order = np.random.default_rng(seed).permutation(len(labels)).tolist()
    seen: dict[int, int] = {}
    rank = {}
    # The k-th row of a class of n stands at (k - 1/2) / n: the first `most` are spread over the classes.
    for row in order:
        seen[labels[row]] = seen.get(labels[row], 0) + 1
        rank[row] = seen[labels[row]]
    places = sorted(order, key=lambda row: ((rank[row] - 0.5) / seen[labels[row]], row))
    return sorted(places[:most])


def ranges(rows: Sequence[int]) -> str:
    """Sorted row numbers, counted from 1, in few words.

    >>> ranges([0, 1, 2, 4])
    '1-3,5'
    """
    runs: list[list[int]] = []
    for row in rows:
        if runs and row == runs[-1][1] + 1:
            runs[-1][1] = row
        else:
            runs.append([row, row])
    return ",".join(f"{a + 1}" if a == b else f"{a + 1}-{b + 1}" for a, b in runs)
