"""The losses an attack climbs, written out naively."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from sparring.attacks import dlr, margin
from sparring.attacks.objectives import objective


def logits_and_targets(seed: int, classes: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(7, classes, generator=generator, dtype=torch.float64)
    return logits, torch.randint(0, classes, (7,), generator=generator)


@given(st.integers(0, 10_000))
@settings(max_examples=30, deadline=None)
def test_margin_and_dlr_against_loops(seed: int) -> None:
    logits, targets = logits_and_targets(seed)
    for row, target, m, d in zip(logits.tolist(), targets.tolist(), margin(logits, targets), dlr(logits, targets)):
        others = [z for j, z in enumerate(row) if j != target]
        top = sorted(row, reverse=True)
        assert m.item() == pytest.approx(max(others) - row[target])
        assert d.item() == pytest.approx((max(others) - row[target]) / (top[0] - top[2]))


@given(st.integers(0, 10_000), st.floats(0.1, 50), st.floats(-5, 5))
@settings(max_examples=30, deadline=None)
def test_dlr_ignores_scale_and_shift(seed: int, scale: float, shift: float) -> None:
    logits, targets = logits_and_targets(seed)
    torch.testing.assert_close(dlr(logits * scale + shift, targets), dlr(logits, targets), rtol=1e-6, atol=1e-9)


def test_margin_is_positive_exactly_when_wrong() -> None:
    logits, targets = logits_and_targets(3)
    assert torch.equal(margin(logits, targets) > 0, logits.argmax(1) != targets)


def test_cross_entropy_gradient_vanishes_where_the_margin_gradient_does_not() -> None:
    logits = torch.tensor([[40.0, 0.0, -3.0]], requires_grad=True)
    (flat,) = torch.autograd.grad(F.cross_entropy(logits, torch.tensor([0])), logits)
    (steep,) = torch.autograd.grad(margin(logits, torch.tensor([0])).sum(), logits)
    assert flat.abs().max() < 1e-16
    assert steep.abs().max() == 1


def test_two_classes_have_no_dlr() -> None:
    with pytest.raises(ValueError, match="at least 3 classes"):
        dlr(torch.zeros(1, 2), torch.tensor([0]))


def test_losses_by_name() -> None:
    assert objective(margin) is margin
    assert objective("dlr") is dlr
