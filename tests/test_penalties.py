"""Penalties and losses against other libraries and naive definitions."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, distributions
from torch.nn import functional as F

import sparring as sp
from sparring.penalties import per_example


def pair(seed: int, *shape: int, scale: float = 2.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(*shape, generator=generator, dtype=torch.float64) * scale for _ in range(2))


def oracle(name: str, a: Tensor, b: Tensor) -> Tensor:
    p, q = distributions.Categorical(logits=a), distributions.Categorical(logits=b)
    mixture = distributions.Categorical(probs=(p.probs + q.probs) / 2)
    kl = distributions.kl_divergence
    return {
        "kl": lambda: kl(p, q),
        "reverse_kl": lambda: kl(q, p),
        "symmetric_kl": lambda: kl(p, q) + kl(q, p),
        "js": lambda: (kl(p, mixture) + kl(q, mixture)) / 2,
        "squared_error": lambda: ((a - b) ** 2).sum(-1),
        "probability_error": lambda: ((p.probs - q.probs) ** 2).sum(-1),
    }[name]()


NAMES = pytest.mark.parametrize(
    "name", ["kl", "reverse_kl", "symmetric_kl", "js", "squared_error", "probability_error"]
)


@NAMES
@given(st.integers(0, 10_000))
def test_penalties_equal_torch_distributions(name: str, seed: int) -> None:
    a, b = pair(seed, 5, 4)
    torch.testing.assert_close(getattr(sp, name)(a, b), oracle(name, a, b))


@NAMES
def test_penalties_average_over_valid_positions(name: str) -> None:
    a, b = pair(0, 3, 4, 5)
    valid = torch.tensor([[True, True, False, False], [True] * 4, [False] * 4])
    found = getattr(sp, name)(a, b, valid=valid)
    rows = oracle(name, a, b)
    torch.testing.assert_close(
        found, torch.stack([rows[0, :2].mean(), rows[1].mean(), torch.zeros((), dtype=torch.float64)])
    )


@NAMES
def test_penalties_differentiate(name: str) -> None:
    a, b = pair(1, 2, 3)
    assert torch.autograd.gradcheck(getattr(sp, name), (a.requires_grad_(), b.requires_grad_()))


@NAMES
def test_penalties_stay_finite_far_apart(name: str) -> None:
    a = torch.zeros(1, 1000)
    a[0, 0] = 200.0
    b = torch.zeros(1, 1000, requires_grad=True)
    value = getattr(sp, name)(a, b + a.flip(-1))
    value.sum().backward()
    assert bool(torch.isfinite(value).all())
    assert bool(torch.isfinite(b.grad).all())


@pytest.mark.parametrize("name", ["kl", "reverse_kl", "symmetric_kl", "js", "probability_error"])
def test_a_class_ruled_out_by_both_counts_for_nothing(name: str) -> None:
    a, b = (logits.requires_grad_() for logits in pair(2, 3, 4))
    out = torch.full((3, 1), -torch.inf, dtype=torch.float64)
    found = getattr(sp, name)(torch.cat([a, out], 1), torch.cat([b, out], 1))
    expected = getattr(sp, name)(a, b)
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad(value.sum(), (a, b)) for value in (found, expected)]
    torch.testing.assert_close(*gradients)


def test_js_is_bounded_and_half_precision_is_widened() -> None:
    a = torch.tensor([[100.0, 0.0]], dtype=torch.bfloat16)
    value = sp.js(a, a.flip(-1))
    assert value.dtype == torch.float32
    assert float(value) == pytest.approx(math.log(2), abs=1e-4)


@pytest.mark.parametrize("name", ["kl", "reverse_kl", "symmetric_kl", "js"])
def test_one_class_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="at least two classes"):
        getattr(sp, name)(torch.zeros(3, 1), torch.zeros(3, 1))


@pytest.mark.parametrize("name", ["kl", "reverse_kl", "symmetric_kl", "js"])
def test_logits_that_are_no_real_numbers_are_refused(name: str) -> None:
    for logits in (torch.ones(2, 3, dtype=torch.complex64), torch.ones(2, 3, dtype=torch.long)):
        with pytest.raises(NotImplementedError, match="log_softmax"):
            getattr(sp, name)(logits, logits)


def test_different_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="differ in shape"):
        sp.kl(torch.zeros(3, 2), torch.zeros(3, 4))
    with pytest.raises(ValueError, match="differ"):
        sp.squared_error(torch.zeros(3, 2), torch.zeros(3))
    with pytest.raises(ValueError, match="positions to average"):
        per_example(torch.zeros(3, 2), torch.ones(3, 4, dtype=torch.bool))


def test_cross_entropy_per_example() -> None:
    logits, targets = torch.randn(4, 6, 5), torch.randint(5, (4, 6))
    targets[1, 3:] = -100
    targets[2] = -100
    expected = [
        F.cross_entropy(logits[i][targets[i] >= 0], targets[i][targets[i] >= 0]) if i != 2 else torch.zeros(())
        for i in range(4)
    ]
    torch.testing.assert_close(sp.cross_entropy(logits, targets), torch.stack(expected))
    flat = sp.cross_entropy(logits[:, 0], targets[:, 0], label_smoothing=0.1)
    torch.testing.assert_close(
        flat, F.cross_entropy(logits[:, 0], targets[:, 0], reduction="none", label_smoothing=0.1)
    )
    soft = torch.rand(4, 5).softmax(-1)
    torch.testing.assert_close(
        sp.cross_entropy(logits[:, 0], soft), F.cross_entropy(logits[:, 0], soft, reduction="none")
    )


def test_other_losses_per_example() -> None:
    outputs, targets = torch.randn(4, 3), torch.rand(4, 3)
    torch.testing.assert_close(sp.squared_loss(outputs, targets), ((outputs - targets) ** 2).mean(1))
    torch.testing.assert_close(sp.squared_loss(outputs[:, :1], targets[:, 0]), (outputs[:, 0] - targets[:, 0]) ** 2)
    expected = F.binary_cross_entropy_with_logits(outputs, targets, reduction="none").mean(1)
    torch.testing.assert_close(sp.binary_cross_entropy(outputs, targets), expected)


@pytest.mark.parametrize("loss", [sp.cross_entropy, sp.squared_loss, sp.binary_cross_entropy])
def test_losses_refuse_shapes_that_would_broadcast(loss: object) -> None:
    with pytest.raises(ValueError, match="shape"):
        loss(torch.zeros(4, 3), torch.zeros(4, 2))


@pytest.mark.parametrize("shape", [(3, 7), (2, 5, 7)])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_squared_error_in_pieces_is_the_plain_formula(
    shape: tuple[int, ...], reduction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sparring import penalties

    monkeypatch.setattr(penalties._SquaredDistance, "PIECE", 14)  # two rows at a time
    a, b = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for _ in range(2))
    plain = (a - b).square()
    plain = plain.sum(-1) if reduction == "sum" else plain.mean(-1)
    plain = plain if plain.dim() == 1 else plain.mean(1)
    weights = torch.rand(shape[0], dtype=torch.float64)
    found = sp.squared_error(a, b, reduction=reduction)
    assert torch.allclose(found, plain)
    expected = torch.autograd.grad(plain @ weights, (a, b))
    for mine, theirs in zip(torch.autograd.grad(found @ weights, (a, b)), expected, strict=True):
        assert torch.allclose(mine, theirs)
    assert torch.autograd.gradgradcheck(lambda x, y: sp.squared_error(x, y, reduction=reduction), (a, b))
    half = sp.squared_error(a.detach().bfloat16(), b.detach().bfloat16(), reduction=reduction)
    assert half.dtype == torch.float32


def test_squared_error_keeps_no_difference_of_the_outputs() -> None:
    """Nothing of the outputs' size is saved beside the outputs themselves."""
    a, b = torch.randn(8, 5000, requires_grad=True), torch.randn(8, 5000)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (kept.append(t), t)[1], lambda t: t):
        sp.squared_error(a, b, reduction="mean").sum()
    assert {t.data_ptr() for t in kept if t.numel() >= a.numel()} == {a.data_ptr(), b.data_ptr()}
    with pytest.raises(ValueError, match='choose "sum" or "mean"'):
        sp.squared_error(a, b, reduction="max")
