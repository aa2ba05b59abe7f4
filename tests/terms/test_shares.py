"""Classes that disappear from the predictions on unlabelled data are counted, and said once."""

import warnings

import pytest
import torch

from sparring.terms.shares import MEMORY, PATIENCE, ClassShares

EVERY = torch.eye(4).repeat(2, 1)


def test_a_lost_class_is_counted_after_some_patience_and_warned_of_once() -> None:
    shares = ClassShares()
    lost = EVERY[torch.arange(8) % 4 != 3]
    for _ in range(PATIENCE - 1):
        shares.add(lost)
    assert shares.diagnostics() == {"unlabelled/missing_classes": 0.0}
    shares.add(lost)
    with pytest.warns(UserWarning, match="1 of 4 classes have disappeared"):
        assert shares.diagnostics() == {"unlabelled/missing_classes": 1.0}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shares.diagnostics()
    assert float(shares.average[3]) == pytest.approx(0.25 * MEMORY**PATIENCE, rel=1e-4)
    assert float(shares.average.sum()) == pytest.approx(1.0, rel=1e-4)


def test_all_classes_present_or_no_classes_at_all() -> None:
    shares = ClassShares()
    shares.add(torch.zeros(3))
    shares.add(torch.zeros(3, 1))
    assert shares.diagnostics() == {}
    for _ in range(PATIENCE + 5):
        shares.add(EVERY)
    assert shares.diagnostics() == {"unlabelled/missing_classes": 0.0}
