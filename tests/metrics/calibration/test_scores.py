"""Proper scores against scikit-learn, intervals against SciPy."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import bootstrap as scipy_bootstrap
from sklearn.metrics import brier_score_loss, log_loss

from sparring.metrics import bootstrap, brier, expected_calibration_error, negative_log_likelihood


def sample(n: int = 200, classes: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    p = torch.randn(n, classes, generator=generator, dtype=torch.float64).softmax(1)
    return p, torch.multinomial(p, 1, generator=generator)[:, 0]


def test_scores_equal_scikit_learns() -> None:
    p, y = sample()
    labels = list(range(p.shape[1]))
    assert brier(p, y) == pytest.approx(brier_score_loss(y, p.numpy(), labels=labels, scale_by_half=False))
    assert negative_log_likelihood(p, y) == pytest.approx(log_loss(y, p.numpy(), labels=labels))
    two, hit = p[:, 0], (y == 0).long()
    assert brier(two, hit) == pytest.approx(2 * brier_score_loss(hit, two.numpy()))
    assert negative_log_likelihood(torch.tensor([[1.0, 0.0]]), torch.tensor([1])) == math.inf


def test_the_interval_is_scipys() -> None:
    p, y = sample()
    ours = bootstrap(brier, p, y, samples=4000)

    def score(index: np.ndarray) -> float:
        return brier(p[index], y[index])

    theirs = scipy_bootstrap(
        (np.arange(len(y)),),
        score,
        n_resamples=4000,
        method="percentile",
        vectorized=False,
        rng=np.random.default_rng(0),
    ).confidence_interval
    assert ours.value == brier(p, y)
    assert ours.low == pytest.approx(theirs.low, abs=0.005)
    assert ours.high == pytest.approx(theirs.high, abs=0.005)
    assert (
        bootstrap(brier, p, y, samples=50) == bootstrap(brier, p, y, samples=50) != bootstrap(brier, p, y, 50, seed=1)
    )
    narrow = bootstrap(brier, p, y, samples=400, level=0.5)
    assert ours.low < narrow.low < narrow.high < ours.high


def test_bad_input_is_named() -> None:
    p, y = sample(5)
    with pytest.raises(ValueError, match="samples=1"):
        bootstrap(brier, p, y, samples=1)
    with pytest.raises(ValueError, match=r"level=1\.5"):
        bootstrap(expected_calibration_error, p, y, level=1.5)
    with pytest.raises(ValueError, match="no example"):
        bootstrap(brier, p[:0], y[:0])
