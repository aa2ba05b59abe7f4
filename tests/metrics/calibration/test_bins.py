"""Calibration errors against loops over bins, and against the library of Kumar et al."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparring.metrics import (
    brier,
    classwise_calibration_error,
    expected_calibration_error,
    fit_temperature,
    negative_log_likelihood,
    reliability,
)


def loop_ece(probabilities: torch.Tensor, targets: torch.Tensor, bins: int) -> float:
    total = 0.0
    for b in range(bins):
        inside = []
        for row, target in zip(probabilities.tolist(), targets.tolist()):
            confidence = max(row)
            if (confidence > b / bins or b == 0) and (confidence <= (b + 1) / bins or b == bins - 1):
                inside.append((confidence, row.index(confidence) == target))
        if inside:
            gap = sum(c for c, _ in inside) / len(inside) - sum(r for _, r in inside) / len(inside)
            total += abs(gap) * len(inside) / len(targets)
    return total


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.integers(1, 60), st.integers(2, 5), st.integers(1, 12))
def test_ece_equals_a_loop_over_bins(seed: int, n: int, classes: int, bins: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    probabilities = torch.randn(n, classes, generator=generator, dtype=torch.float64).softmax(1)
    targets = torch.randint(classes, (n,), generator=generator)
    assert math.isclose(
        expected_calibration_error(probabilities, targets, bins), loop_ece(probabilities, targets, bins), abs_tol=1e-12
    )


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.integers(2, 60), st.integers(1, 8))
def test_bins_partition_the_examples_and_means_stay_inside_their_bin(seed: int, n: int, bins: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    probabilities = torch.rand(n, generator=generator, dtype=torch.float64)
    diagram = reliability(probabilities, torch.randint(2, (n,), generator=generator), bins)
    assert int(diagram.counts.sum()) == n
    full = diagram.counts > 0
    assert bool((diagram.confidence[full] <= diagram.edges[1:][full] + 1e-12).all())
    assert bool((diagram.confidence[full] >= diagram.edges[:-1][full] - 1e-12).all())
    assert bool(diagram.accuracy[~full].isnan().all())
    assert diagram.ece <= diagram.mce + 1e-12


def test_a_calibrated_model_has_a_vanishing_error_and_an_overconfident_one_has_not() -> None:
    generator = torch.Generator().manual_seed(0)
    p = 0.5 + 0.5 * torch.rand(200_000, generator=generator, dtype=torch.float64)
    hit = (torch.rand(p.shape, generator=generator, dtype=torch.float64) < p).long()
    calibrated = torch.stack([1 - p, p], 1)
    assert expected_calibration_error(calibrated, hit) < 0.01
    sure = torch.stack([torch.zeros_like(p), torch.ones_like(p)], 1)
    assert math.isclose(expected_calibration_error(sure, hit), 0.25, abs_tol=0.01)


def test_equal_mass_bins_hold_equal_counts() -> None:
    generator = torch.Generator().manual_seed(0)
    probabilities = torch.randn(1000, 4, generator=generator).softmax(1)
    counts = reliability(probabilities, torch.zeros(1000, dtype=torch.long), 10, equal_mass=True).counts
    assert int(counts.min()) >= 99
    assert int(counts.max()) <= 101


MEASURES = [
    brier, classwise_calibration_error, expected_calibration_error, fit_temperature, negative_log_likelihood, reliability,
]  # fmt: skip


@pytest.mark.parametrize("measure", MEASURES, ids=lambda measure: measure.__name__)
def test_nothing_to_measure_is_one_sentence(measure: Callable[..., object]) -> None:
    with pytest.raises(ValueError, match="targets are empty; calibration is measured on at least one example"):
        measure(torch.zeros(0, 3), torch.zeros(0, dtype=torch.long))


@pytest.mark.parametrize("measure", MEASURES, ids=lambda measure: measure.__name__)
def test_targets_of_any_whole_type_are_alike(measure: Callable[..., object]) -> None:
    p, y = torch.tensor([[0.9, 0.1], [0.3, 0.7], [0.8, 0.2]], dtype=torch.float64), torch.tensor([0, 1, 1])
    known = str(measure(p, y))
    for dtype in (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32):
        assert str(measure(p, y.to(dtype))) == known
    for wrong, seen in ((torch.tensor([0, 1, 2]), "hold 2"), (-y, "hold -1"), (y.float(), r"are torch\.float32")):
        with pytest.raises(ValueError, match=f"targets {seen}; they must be class numbers from 0 to 1"):
            measure(p, wrong)


@pytest.mark.parametrize("bins", [10, 15, 20, 23])
def test_a_probability_on_an_edge_belongs_to_the_bin_it_closes(bins: int) -> None:
    """`(0.5, 0.55]` holds 0.55: the edges are the doubles nearest to k / bins, as a loop computes them."""
    on_edges = torch.tensor([k / bins for k in range(bins // 2 + 1, bins + 1)], dtype=torch.float64)
    counts = reliability(on_edges, torch.ones(len(on_edges), dtype=torch.long), bins).counts
    assert counts.tolist() == [0] * (bins // 2) + [1] * (bins - bins // 2)
    generator = torch.Generator().manual_seed(bins)
    p = torch.randint(bins + 1, (50,), generator=generator).double() / bins
    both, y = torch.stack([p, 1 - p], 1), torch.randint(2, (50,), generator=generator)
    gaps = 0.0
    for k, b in itertools.product(range(2), range(bins)):
        inside = ((both[:, k] > b / bins) | (b == 0)) & (both[:, k] <= (b + 1) / bins)
        gaps += abs(float((both[:, k] - (y == k).double())[inside].sum()))
    assert classwise_calibration_error(both, y, bins) == pytest.approx(gaps / 100, abs=1e-12)


def test_probabilities_that_are_not_numbers_are_not_called_calibrated() -> None:
    probabilities = torch.tensor([[0.9, 0.1], [math.nan, math.nan]])
    assert math.isnan(expected_calibration_error(probabilities, torch.tensor([0, 1])))


@pytest.mark.parametrize("equal_mass", [False, True])
def test_binary_probabilities_are_two_classes(equal_mass: bool) -> None:
    p, y = torch.tensor([0.9, 0.2, 0.6]), torch.tensor([1, 0, 0])
    both = torch.stack([1 - p.double(), p.double()], 1)
    assert expected_calibration_error(p, y, 5, equal_mass) == expected_calibration_error(both, y, 5, equal_mass)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_other_class_keeps_the_digits_that_the_given_one_has(dtype: torch.dtype) -> None:
    p, y = torch.tensor([1e-4, 2e-4], dtype=dtype), torch.tensor([0, 0])
    assert negative_log_likelihood(p, y) == pytest.approx(float(-torch.log1p(-p.double()).mean()))
    assert brier(p, y) == pytest.approx(float(2 * p.double().square().mean()))


def sample(n: int = 600, classes: int = 3, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Overconfident predictions whose answers are drawn from milder ones."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, classes, generator=generator, dtype=torch.float64)
    return (2 * logits).softmax(1), torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]


@pytest.mark.parametrize("bins", [5, 10])
@pytest.mark.parametrize("seed", [0, 1])
def test_errors_equal_those_of_another_library(bins: int, seed: int) -> None:
    other = pytest.importorskip("calibration", reason="needs the package uncertainty-calibration")
    p, y = sample(seed=seed)
    arrays = p.numpy(), y.numpy()
    assert expected_calibration_error(p, y, bins) == pytest.approx(other.get_ece(*arrays, num_bins=bins))
    mass = other.get_ece_em(*arrays, num_bins=bins)
    assert expected_calibration_error(p, y, bins, equal_mass=True) == pytest.approx(mass)
    wide = {"p": 1, "debias": False, "num_bins": bins, "mode": "marginal"}
    classwise = other.lower_bound_scaling_ce(*arrays, binning_scheme=other.get_equal_prob_bins, **wide)
    assert classwise_calibration_error(p, y, bins) == pytest.approx(classwise)
    squared = {"p": 2, "debias": True, "num_bins": bins, "mode": "top-label"}
    rms = other.lower_bound_scaling_ce(*arrays, binning_scheme=other.get_equal_bins, **squared)
    assert reliability(p, y, bins, equal_mass=True).rms == pytest.approx(rms)


def test_the_debiased_error_is_that_of_another_library_without_its_dice() -> None:
    other = pytest.importorskip("calibration", reason="needs the package uncertainty-calibration")
    p, y = sample(150)
    np.random.seed(0)
    drawn = [other.get_ece_em(p.numpy(), y.numpy(), debias=True, num_bins=10) for _ in range(5)]
    ours = expected_calibration_error(p, y, 10, equal_mass=True, debiased=True)
    assert ours == pytest.approx(np.mean(drawn), abs=4 * np.std(drawn) / 5**0.5)
    assert ours < expected_calibration_error(p, y, 10, equal_mass=True) - 0.005


def test_debiasing_takes_out_what_chance_adds() -> None:
    """A calibrated model on few examples: the plain error is far above 0, the debiased one nearer."""
    plain, debiased = [], []
    for seed in range(200):
        generator = torch.Generator().manual_seed(seed)
        p = torch.randn(100, 3, generator=generator, dtype=torch.float64).mul(2).softmax(1)
        y = torch.multinomial(p, 1, generator=generator)[:, 0]
        plain.append(expected_calibration_error(p, y, equal_mass=True))
        debiased.append(expected_calibration_error(p, y, equal_mass=True, debiased=True))
    assert np.mean(plain) > 0.08
    assert abs(np.mean(debiased)) < 0.7 * np.mean(plain)


def test_the_classwise_error_is_the_mean_over_classes() -> None:
    p, y = sample(300)
    means = [expected_calibration_error_of_class(p[:, k], y == k) for k in range(3)]
    assert classwise_calibration_error(p, y) == pytest.approx(np.mean(means))


def expected_calibration_error_of_class(p: torch.Tensor, hit: torch.Tensor) -> float:
    bin_of = np.clip(np.ceil(p.numpy() * 10).astype(int) - 1, 0, 9)
    gaps = [abs((p.numpy() - hit.numpy())[bin_of == b].sum()) for b in range(10)]
    return float(np.sum(gaps) / len(p))


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="bins=0"):
        reliability(torch.full((2, 2), 0.5), torch.zeros(2, dtype=torch.long), 0)
    with pytest.raises(ValueError, match=r"\(3,\)"):
        reliability(torch.ones(2, 2), torch.zeros(3, dtype=torch.long))
    with pytest.raises(ValueError, match="outside 0 and 1; pass logits"):
        reliability(torch.tensor([[3.0, -1.0]]), torch.tensor([0]))
    for unnormalised in (torch.tensor([[0.7, 0.9]]), torch.tensor([[0.7]]), torch.tensor([[0.1, 0.2, 0.3]])):
        with pytest.raises(ValueError, match=r"sum up to (0|1\.6)"):
            brier(unnormalised, torch.tensor([0]))
    reliability(torch.full((1, 3), 0.333), torch.tensor([0]))  # rounded, as tables are
