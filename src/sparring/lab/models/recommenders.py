"""Linear recommenders to beat: EASE, SLIM and weighted matrix factorisation.

Each is fitted on a sparse users x items matrix and scores users it never saw from the items they show:
`model.fit(train).scores(fold_in)` is (users, items), ready for `sparring.metrics.ranking.evaluate_ranking`.
"""

import warnings
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import Any, Literal, Protocol

import numpy as np
from scipy.linalg import get_lapack_funcs
from scipy.sparse import csc_array, csr_array
from threadpoolctl import threadpool_limits


class Recommender(Protocol):
    """Fits on what training users liked, scores all items for new users."""

    def fit(self, train: csr_array) -> "Recommender": ...

    def scores(self, fold_in: csr_array) -> np.ndarray: ...


@dataclass
class EASE:
    """Item-to-item regression without self-similarity, in closed form (Steck 2019).

    Minimises ||X - X B||^2 + penalty ||B||^2 subject to diag(B) = 0: `B = I - P / diag(P)`, `P = (X'X + penalty I)^-1`.

    >>> likes = csr_array([[1.0, 1, 0], [1, 1, 0], [0, 0, 1]])
    >>> EASE(penalty=1.0).fit(likes).scores(csr_array([[1.0, 0, 0]])).round(2).tolist()
    [[0.0, 0.67, 0.0]]

    Everything happens in one items x items matrix, filled and mirrored block by block: 20,000 items take 1.6 GB in float32.

    Args:
        penalty: strength of the ridge; larger catalogues want hundreds.
        precision: "double", "single", or "auto": double up to 11,000 items (a matrix of 1 GB), single beyond. Single is
            right to about three digits, which rankings do not notice.
        block: items computed at a time.
    """

    penalty: float = 200.0
    precision: Literal["auto", "double", "single"] = "auto"
    block: int = 1000
    weights: np.ndarray = field(init=False, repr=False)

    def fit(self, train: csr_array) -> "EASE":
        if self.penalty <= 0:
            raise ValueError(f"penalty={self.penalty} must be positive, X'X alone may not be invertible")
        items = train.shape[1]
        double = items <= 11_000 if self.precision == "auto" else self.precision == "double"
        kind = np.float64 if double else np.float32
        likes = csc_array(train, dtype=kind)
        gram = np.empty((items, items), kind, order="F")
        blocks = [slice(start, min(start + self.block, items)) for start in range(0, items, self.block)]
        for part in blocks:
            gram[:, part] = (likes.T @ likes[:, part]).toarray()
        gram[np.diag_indices_from(gram)] += self.penalty
        factor, invert = get_lapack_funcs(("potrf", "potri"), (gram,))
        for step in (factor, invert):  # both work in place, on the lower triangle
            gram, failed = step(gram, lower=True, **{"overwrite_a" if step is factor else "overwrite_c": True})
            if failed:
                raise ValueError(f"X'X + {self.penalty} I is not positive definite in {kind.__name__}; raise penalty=")
        for part in blocks:
            gram[part, part.stop :] = gram[part.stop :, part].T
            square = np.tril(gram[part, part])
            gram[part, part] = square + np.tril(square, -1).T
        gram /= -np.diag(gram).copy()
        np.fill_diagonal(gram, 0.0)
        self.weights = gram
        return self

    def scores(self, fold_in: csr_array) -> np.ndarray:
        return np.asarray(fold_in.astype(self.weights.dtype) @ self.weights)


@dataclass
class SLIM:
    """Sparse non-negative item-to-item weights, one elastic net per item (Ning and Karypis 2011), by scikit-learn.

    Minimises, for every item j, ||x_j - X w||^2 / (2 users) + alpha (l1 ||w||_1 + (1 - l1) ||w||^2 / 2) with w >= 0 and
    w_j = 0.

    >>> likes = csr_array([[1.0, 1, 0], [1, 1, 0], [0, 0, 1]])
    >>> SLIM(alpha=0.01).fit(likes).scores(csr_array([[1.0, 0, 0]])).argmax()
    np.int64(1)

    Args:
        alpha: strength of the penalty.
        l1: share of it that is L1 (the part that makes weights sparse).
        sweeps: most coordinate-descent sweeps per item.
        tolerance: relative duality gap to stop at.
    """

    alpha: float = 0.005
    l1: float = 0.1
    sweeps: int = 200
    tolerance: float = 1e-4
    weights: csc_array = field(init=False, repr=False)

    def fit(self, train: csr_array) -> "SLIM":
        linear = extra("sklearn.linear_model", "SLIM", "scikit-learn")
        convergence = extra("sklearn.exceptions", "SLIM", "scikit-learn").ConvergenceWarning
        net = linear.ElasticNet(
            alpha=self.alpha,
            l1_ratio=self.l1,
            positive=True,
            fit_intercept=False,
            copy_X=False,
            max_iter=self.sweeps,
            tol=self.tolerance,
        )
        likes = csc_array(train, dtype=np.float64, copy=True)
        likes.indices, likes.indptr = likes.indices.astype(np.int32), likes.indptr.astype(np.int32)  # scikit-learn's
        columns, unfinished = [], 0
        with warnings.catch_warnings(record=True) as raised:
            warnings.simplefilter("always", convergence)
            for item in range(likes.shape[1]):
                own = slice(likes.indptr[item], likes.indptr[item + 1])
                target, kept = likes[:, [item]].toarray().ravel(), likes.data[own].copy()
                likes.data[own] = 0.0  # an item may not explain itself
                columns.append(csc_array(net.fit(likes, target).sparse_coef_.T))
                likes.data[own] = kept
            unfinished = sum(issubclass(warning.category, convergence) for warning in raised)
        if unfinished:
            warnings.warn(
                f"SLIM: {unfinished} of {likes.shape[1]} items stopped at sweeps={self.sweeps} before "
                f"tolerance={self.tolerance}; raise one of them",
                stacklevel=2,
            )
        self.weights = _beside(columns)
        return self

    def scores(self, fold_in: csr_array) -> np.ndarray:
        return (fold_in @ self.weights).toarray()


@dataclass
class WMF:
    """Weighted matrix factorisation by alternating least squares (Hu et al. 2008), by `implicit`.

    Liked pairs have confidence `1 + alpha`, all others 1. A new user's factors are the least-squares solution given the
    items' (`recalculate_user`), so no gradient step is needed to fold users in.

    >>> likes = csr_array([[1.0, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1]])
    >>> model = WMF(factors=2, seed=0).fit(likes)
    >>> int(model.scores(csr_array([[1.0, 0, 0, 0]]))[0, 1:].argmax()) + 1
    1

    Args:
        factors: size of the factorisation.
        penalty: ridge on the factors.
        alpha: extra confidence of a like.
        iterations: alternations.
        seed: of the initial factors.
    """

    factors: int = 100
    penalty: float = 0.1
    alpha: float = 10.0
    iterations: int = 15
    seed: int = 0
    model: Any = field(init=False, repr=False)

    def fit(self, train: csr_array) -> "WMF":
        als = extra("implicit.cpu.als", "WMF", "implicit")
        with threadpool_limits(1, "blas"):
            self.model = als.AlternatingLeastSquares(
                factors=self.factors,
                regularization=self.penalty,
                iterations=self.iterations,
                num_threads=1,
                random_state=self.seed,
            )
            self.model.fit(self._confidence(train), show_progress=False)
        return self

    def scores(self, fold_in: csr_array) -> np.ndarray:
        with threadpool_limits(1, "blas"):
            users = self.model.recalculate_user(np.arange(fold_in.shape[0]), self._confidence(fold_in))
        return users @ self.model.item_factors.T

    def _confidence(self, likes: csr_array) -> Any:
        matrix = extra("scipy.sparse", "WMF", "scipy").csr_matrix(likes, dtype=np.float32, copy=True)
        matrix.eliminate_zeros()
        matrix.data = 1 + self.alpha * matrix.data
        return matrix


def extra(module: str, user: str, package: str) -> ModuleType:
    """Import an optional module, or say which extra brings it.

    >>> extra("no_such_module", "WMF", "implicit")
    Traceback (most recent call last):
    ...
    ImportError: WMF needs implicit; install it with `pip install 'sparring[recsys]'`
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(f"{user} needs {package}; install it with `pip install 'sparring[recsys]'`") from error


def _beside(columns: list[csc_array]) -> csc_array:
    data = np.concatenate([column.data for column in columns])
    indices = np.concatenate([column.indices for column in columns])
    indptr = np.cumsum([0, *(column.nnz for column in columns)])
    return csc_array((data, indices, indptr), shape=(columns[0].shape[0], len(columns)))
