"""Linear recommenders against other solvers of the same problems."""

import sys

import numpy as np
import pytest
from scipy.optimize import nnls
from scipy.sparse import csr_array

from sparring.lab.models.recommenders import EASE, SLIM, WMF, Recommender


@pytest.fixture
def likes() -> csr_array:
    rng = np.random.default_rng(0)
    taste = rng.random((40, 3)) @ rng.random((3, 12))
    return csr_array((taste + 0.3 * rng.random(taste.shape) > np.quantile(taste, 0.6)).astype(np.float32))


def test_ease_solves_the_constrained_least_squares(likes: csr_array) -> None:
    penalty, dense = 2.5, likes.toarray().astype(float)
    weights = EASE(penalty).fit(likes).weights
    for item in range(dense.shape[1]):
        others = np.delete(np.arange(dense.shape[1]), item)
        stacked = np.vstack([dense[:, others], np.sqrt(penalty) * np.eye(len(others))])
        expected, *_ = np.linalg.lstsq(stacked, np.concatenate([dense[:, item], np.zeros(len(others))]), rcond=None)
        np.testing.assert_allclose(weights[others, item], expected, atol=1e-10)
    assert np.all(np.diag(weights) == 0)


def test_slim_solves_the_non_negative_elastic_net(likes: csr_array) -> None:
    alpha, l1, dense = 0.02, 0.4, likes.toarray().astype(float)
    weights = SLIM(alpha, l1, sweeps=5000, tolerance=1e-12).fit(likes).weights.toarray()
    for item in range(dense.shape[1]):
        others = np.delete(np.arange(dense.shape[1]), item)
        x = dense[:, others]
        # 1/2 w'Hw - c'w over w >= 0 is the non-negative least squares of L'w against L^-1 c with H = LL'
        lower = np.linalg.cholesky(x.T @ x / len(x) + alpha * (1 - l1) * np.eye(len(others)))
        linear = x.T @ dense[:, item] / len(x) - alpha * l1
        expected, _ = nnls(lower.T, np.linalg.solve(lower, linear))
        np.testing.assert_allclose(weights[others, item], expected, atol=1e-6)
    assert np.all(np.diag(weights) == 0)
    assert np.mean(weights == 0) > 0.3


def test_slim_says_when_it_stopped_early(likes: csr_array) -> None:
    with pytest.warns(UserWarning, match=r"SLIM: \d+ of 12 items stopped at sweeps=1"):
        SLIM(alpha=1e-4, sweeps=1, tolerance=1e-12).fit(likes)


def test_wmf_folds_users_in_by_least_squares(likes: csr_array) -> None:
    model = WMF(factors=4, penalty=0.3, alpha=7.0, iterations=5).fit(likes[:30])
    items = model.model.item_factors.astype(float)
    fold_in = csr_array(likes[30:])
    for row, scores in zip(fold_in.toarray(), model.scores(fold_in)):
        confidence = 1 + 7.0 * row
        normal = items.T @ (confidence[:, None] * items) + 0.3 * np.eye(4)
        expected = items @ np.linalg.solve(normal, items.T @ (confidence * row))
        np.testing.assert_allclose(scores, expected, rtol=2e-3, atol=2e-4)


def test_wmf_lowers_its_own_objective(likes: csr_array) -> None:
    def objective(iterations: int) -> float:
        model = WMF(factors=3, penalty=0.1, alpha=4.0, iterations=iterations).fit(likes).model
        target = likes.toarray()
        error = (target - model.user_factors @ model.item_factors.T) ** 2 * (1 + 4.0 * target)
        return float(error.sum() + 0.1 * ((model.user_factors**2).sum() + (model.item_factors**2).sum()))

    values = [objective(n) for n in (1, 3, 20)]
    assert values[0] > values[1] > values[2]


@pytest.mark.parametrize("model", [EASE(1.0), SLIM(0.01), WMF(factors=3)], ids=lambda m: type(m).__name__)
def test_empty_rows_give_finite_equal_scores(model: Recommender, likes: csr_array) -> None:
    scores = model.fit(likes).scores(csr_array((2, 12), dtype=np.float32))
    np.testing.assert_allclose(scores, 0, atol=1e-7)


@pytest.mark.parametrize(("model", "module"), [(WMF(), "implicit.cpu.als"), (SLIM(), "sklearn.linear_model")])
def test_a_missing_extra_is_named(
    model: Recommender, module: str, likes: csr_array, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=r"pip install 'sparring\[recsys\]'"):
        model.fit(likes)


def test_a_useless_penalty_is_named(likes: csr_array) -> None:
    with pytest.raises(ValueError, match="penalty=0 must be positive"):
        EASE(0).fit(likes)


@pytest.mark.parametrize("block", [1, 5, 12, 100])
@pytest.mark.parametrize(("precision", "tolerance"), [("double", 1e-12), ("single", 1e-3)])
def test_ease_in_blocks_is_the_closed_form(likes: csr_array, block: int, precision: str, tolerance: float) -> None:
    inverse = np.linalg.inv((likes.T @ likes).toarray().astype(float) + 3.0 * np.eye(12))
    expected = -inverse / np.diag(inverse)
    np.fill_diagonal(expected, 0.0)
    found = EASE(3.0, precision, block).fit(likes).weights
    assert found.dtype == (np.float64 if precision == "double" else np.float32)
    np.testing.assert_allclose(found, expected, atol=tolerance)


def test_ease_needs_one_matrix_of_items_and_little_more() -> None:
    """20,000 items in single precision are 1.6 GB: the limit of 4 GiB holds if the peak stays below 2.5 such matrices."""
    import tracemalloc

    items = 1500
    rng = np.random.default_rng(0)
    likes = csr_array((rng.random((400, items)) < 0.05).astype(np.float32))
    tracemalloc.start()
    EASE(100.0, "single", block=100).fit(likes)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1.5 * 4 * items**2
