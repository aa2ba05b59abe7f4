"""Confusion counts and IoU against scikit-learn."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparring.metrics import Confusion, mean_iou

sklearn_metrics = pytest.importorskip("sklearn.metrics")


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.integers(2, 5), st.integers(1, 40))
def test_counts_and_iou_equal_scikit_learn(seed: int, classes: int, n: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    guess, true = (torch.randint(classes, (n,), generator=generator) for _ in range(2))
    counts = Confusion.of(guess, true, classes)
    expected = sklearn_metrics.confusion_matrix(true, guess, labels=range(classes))
    assert counts.matrix.tolist() == expected.tolist()
    present = sorted({*guess.tolist(), *true.tolist()})
    scores = sklearn_metrics.jaccard_score(true, guess, labels=present, average=None, zero_division=0)
    assert counts.iou[present].tolist() == pytest.approx(scores.tolist())
    assert counts.mean_iou == pytest.approx(scores.mean())
    assert counts.accuracy == pytest.approx(sklearn_metrics.accuracy_score(true, guess))


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6))
def test_void_pixels_do_not_count(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    guess = torch.randint(3, (2, 4, 4), generator=generator)
    true = torch.randint(4, (2, 4, 4), generator=generator)
    seen = true != 3
    assert torch.equal(Confusion.of(guess, true, 3, void=3).matrix, Confusion.of(guess[seen], true[seen], 3).matrix)


def test_batches_add_up() -> None:
    generator = torch.Generator().manual_seed(0)
    guess, true = (torch.randint(3, (6, 5), generator=generator) for _ in range(2))
    parts = Confusion.of(guess[:2], true[:2], 3) + Confusion.of(guess[2:], true[2:], 3)
    assert torch.equal(parts.matrix, Confusion.of(guess, true, 3).matrix)


def test_nothing_labelled_is_nan_and_perfect_is_one() -> None:
    empty = Confusion.of(torch.zeros(3, dtype=torch.long), torch.full((3,), 9), 2, void=9)
    assert math.isnan(empty.accuracy)
    assert math.isnan(empty.mean_iou)
    labels = torch.tensor([0, 1, 1])
    assert mean_iou(labels, labels, classes=4) == 1.0  # absent classes do not drag the mean down


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_labels_as_images_store_them_do_not_overflow(dtype: torch.dtype) -> None:
    labels = torch.arange(20).repeat(3)
    found = Confusion.of(labels.to(dtype), labels.to(dtype), 20, void=255)
    assert torch.equal(found.matrix, 3 * torch.eye(20, dtype=torch.long))


def test_labels_out_of_range_are_named() -> None:
    with pytest.raises(ValueError, match=r"targets holds labels 0\.\.11 outside 0\.\.10"):
        Confusion.of(torch.tensor([0, 0]), torch.tensor([0, 11]), 11)


def test_probabilities_are_not_cut_to_classes() -> None:
    labels, probabilities = torch.tensor([0, 1]), torch.tensor([0.2, 0.9])
    assert mean_iou(probabilities > 0.5, labels, classes=2) == 1.0
    with pytest.raises(ValueError, match="must be class numbers"):
        mean_iou(probabilities, labels, classes=2)
