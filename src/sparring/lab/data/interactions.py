"""Implicit feedback: a sparse users x items matrix of what was liked, and its split by users.

The protocol of Liang et al. (2018) as used in Boluki et al. (2020), section 3.3: keep ratings of 4 and more and users
with 5 items; split *users*; drop items no training user has; of every validation and test user show 80 % of the items
and hold out the rest.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.sparse import csr_array

from .ratings.formats import Ratings
from .ratings.ratings import read_ratings


@dataclass(frozen=True)
class Interactions:
    """Binary users x items CSR matrix, with the published ids of its rows (`users`) and columns (`items`)."""

    matrix: csr_array
    users: np.ndarray
    items: np.ndarray


@dataclass(frozen=True)
class Judged:
    """Users a model never saw: what they show (`fold_in`) and what they are judged by (`held_out`), disjoint."""

    fold_in: csr_array
    held_out: csr_array


@dataclass(frozen=True)
class StrongSplit:
    """Users divided into train, validation and test over one set of columns.

    Attributes:
        train: users x items, everything the model may learn from.
        validation: to stop and choose by.
        test: to report.
        columns: for each column, its place in the matrix that was split.
    """

    train: csr_array
    validation: Judged
    test: Judged
    columns: np.ndarray


def implicit_feedback(
    ratings: Ratings, min_rating: float = 4.0, min_user_items: int = 5, min_item_users: int = 0
) -> Interactions:
    """Turn ratings into likes: keep high ones, then items with enough users, then users with enough items.

    >>> log = Ratings(np.array([7, 7, 8]), np.array([1, 2, 1]), np.array([5.0, 2.0, 4.0]))
    >>> likes = implicit_feedback(log, min_user_items=1)
    >>> likes.matrix.toarray().tolist(), likes.users.tolist(), likes.items.tolist()
    ([[1.0], [1.0]], [7, 8], [1])

    Args:
        ratings: the log.
        min_rating: the lowest rating that counts as a like; play counts: 1.
        min_user_items: users with fewer likes are dropped (ML-20M, Netflix: 5; Million Song: 20).
        min_item_users: items with fewer users are dropped first (Million Song: 200).
    """
    liked = ratings.values >= min_rating
    users, rows = np.unique(ratings.users[liked], return_inverse=True)
    items, columns = np.unique(ratings.items[liked], return_inverse=True)
    matrix = csr_array((np.ones(len(rows), np.float32), (rows, columns)), shape=(len(users), len(items)))
    matrix.sum_duplicates()
    matrix.data[:] = 1
    popular = matrix.count_nonzero(axis=0) >= min_item_users
    matrix, items = csr_array(matrix[:, popular]), items[popular]
    active = np.diff(matrix.indptr) >= min_user_items
    matrix, users = csr_array(matrix[active]), users[active]
    seen = matrix.count_nonzero(axis=0) > 0
    matrix, items = csr_array(matrix[:, seen]), items[seen]
    if not matrix.nnz:
        raise ValueError(
            f"no interaction is left with min_rating={min_rating}, min_user_items={min_user_items}, "
            f"min_item_users={min_item_users}; lower them"
        )
    if ratings.names is not None:
        users, items = ratings.names[0][users], ratings.names[1][items]
    return Interactions(matrix, users, items)


def read_interactions(
    path: Path | str, min_rating: float = 4.0, min_user_items: int = 5, min_item_users: int = 0
) -> Interactions:
    """`read_ratings`, then `implicit_feedback`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "ratings.csv").write_text("userId,movieId,rating,timestamp\\n1,31,4.5,0\\n1,32,1.0,0\\n")
    ...     read_interactions(folder, min_user_items=1).items.tolist()
    [31]
    """
    return implicit_feedback(read_ratings(path), min_rating, min_user_items, min_item_users)


def strong_split(matrix: csr_array, validation: int, test: int, seed: int, held_out: float = 0.2) -> StrongSplit:
    """Split users at random into train, validation and test, and the items of the latter two into shown and held out.

    A user with n known items holds out `floor(held_out * n)` of them: with fewer than 1/held_out items nothing, and the
    ranking metrics then skip that user.

    >>> split = strong_split(csr_array(np.ones((10, 20))), validation=2, test=3, seed=0)
    >>> split.train.shape, split.test.fold_in.nnz, split.test.held_out.nnz
    ((5, 20), 48, 12)

    Args:
        matrix: users x items.
        validation: number of users to validate on.
        test: number of users to test on.
        seed: of the split; the same seed gives the same split.
        held_out: share of a user's items to judge by, in (0, 1).
    """
    users = matrix.shape[0]
    if validation < 1 or test < 1 or validation + test >= users:
        raise ValueError(f"validation={validation} and test={test} must leave training users of the {users} there are")
    if not 0 < held_out < 1:
        raise ValueError(f"held_out={held_out} must lie strictly between 0 and 1, for example 0.2")
    rng = np.random.default_rng(seed)
    order = rng.permutation(users)
    train = csr_array(matrix[np.sort(order[validation + test :])])
    columns = np.flatnonzero(train.count_nonzero(axis=0))
    unseen, tested = (
        _judged(csr_array(matrix[np.sort(rows)][:, columns]), held_out, rng)
        for rows in (order[:validation], order[validation : validation + test])
    )
    return StrongSplit(csr_array(train[:, columns]), unseen, tested, columns)


def _judged(matrix: csr_array, share: float, rng: np.random.Generator) -> Judged:
    lengths = np.diff(matrix.indptr)
    row = np.repeat(np.arange(len(lengths)), lengths)
    shuffled = np.lexsort((rng.random(matrix.nnz), row))  # rows stay in order, their entries do not
    rank = np.arange(matrix.nnz) - np.repeat(matrix.indptr[:-1], lengths)
    hide = np.zeros(matrix.nnz, bool)
    hide[shuffled] = rank < np.repeat(np.floor(share * lengths + 1e-9), lengths)
    shown, hidden = (
        csr_array((matrix.data[keep], (row[keep], matrix.indices[keep])), shape=matrix.shape) for keep in (~hide, hide)
    )
    return Judged(shown, hidden)
