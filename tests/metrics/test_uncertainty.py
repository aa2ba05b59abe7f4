"""PAvgPU against loops over predictions and patches."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparring.metrics import patch_pavgpu, pavgpu, predictive_entropy, threshold_grid


def loop_counts(right: list[bool], entropy: list[float], threshold: float) -> tuple[int, int, int, int]:
    ac = sum(r and e <= threshold for r, e in zip(right, entropy))
    au = sum(r and e > threshold for r, e in zip(right, entropy))
    ic = sum(not r and e <= threshold for r, e in zip(right, entropy))
    iu = sum(not r and e > threshold for r, e in zip(right, entropy))
    return ac, au, ic, iu


def counts_of(result: object) -> list[torch.Tensor]:
    names = ("accurate_certain", "accurate_uncertain", "inaccurate_certain", "inaccurate_uncertain")
    return [getattr(result, name) for name in names]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.booleans(), st.floats(0, 3)), min_size=1, max_size=40),
    st.lists(st.floats(-1, 4), min_size=1, max_size=5),
)
def test_counts_equal_a_loop_at_every_threshold(pairs: list[tuple[bool, float]], thresholds: list[float]) -> None:
    right, entropy = [r for r, _ in pairs], [e for _, e in pairs]
    result = pavgpu(
        torch.tensor(right), torch.tensor(entropy, dtype=torch.float64), torch.tensor(thresholds, dtype=torch.float64)
    )
    for i, threshold in enumerate(thresholds):
        ac, au, ic, iu = loop_counts(right, entropy, threshold)
        assert [int(c[i]) for c in counts_of(result)] == [ac, au, ic, iu]
        assert math.isclose(float(result.score[i]), (ac + iu) / len(pairs))
        if ac + ic:
            assert math.isclose(float(result.accurate_given_certain[i]), ac / (ac + ic))
        if ic + iu:
            assert math.isclose(float(result.uncertain_given_inaccurate[i]), iu / (ic + iu))


def test_the_ends_of_the_grid_are_accuracy_and_nearly_the_error() -> None:
    generator = torch.Generator().manual_seed(0)
    right = torch.rand(500, generator=generator) < 0.7
    entropy = torch.rand(500, generator=generator)
    scores = pavgpu(right, entropy, threshold_grid(entropy, 5)).score
    assert float(scores[-1]) == float(right.double().mean())  # everything certain: accuracy
    assert abs(float(scores[0]) - float((~right).double().mean())) <= 1 / 500 + 1e-12  # all but the minimum uncertain


def test_batches_add_up() -> None:
    generator = torch.Generator().manual_seed(0)
    right, entropy = torch.rand(30, generator=generator) < 0.5, torch.rand(30, generator=generator)
    cut = torch.tensor([0.3, 0.6])
    whole = pavgpu(right, entropy, cut)
    halves = pavgpu(right[:10], entropy[:10], cut) + pavgpu(right[10:], entropy[10:], cut)
    assert torch.equal(whole.score, halves.score)
    with pytest.raises(ValueError, match="thresholds"):
        _ = whole + pavgpu(right, entropy, 0.5)


def loop_patches(
    p: torch.Tensor, y: torch.Tensor, window: int, stride: int, void: int | None
) -> tuple[list[bool], list[float]]:
    right, entropy = [], []
    for b in range(len(y)):
        for top in range(0, y.shape[1] - window + 1, stride):
            for left in range(0, y.shape[2] - window + 1, stride):
                hits, bits = [], []
                for i in range(top, top + window):
                    for j in range(left, left + window):
                        if void is None or int(y[b, i, j]) != void:
                            pixel = p[b, :, i, j].tolist()
                            hits.append(pixel.index(max(pixel)) == int(y[b, i, j]))
                            bits.append(-sum(q * math.log(q) for q in pixel if q > 0))
                if hits:
                    right.append(sum(hits) / len(hits) > 0.5)
                    entropy.append(sum(bits) / len(bits))
    return right, entropy


@settings(deadline=None, max_examples=40)
@given(
    st.integers(0, 10**6),
    st.integers(2, 3),
    st.integers(1, 3),
    st.integers(3, 6),
    st.integers(3, 7),
    st.sampled_from([None, 2]),
)
def test_patches_equal_a_loop(seed: int, window: int, stride: int, height: int, width: int, void: int | None) -> None:
    generator = torch.Generator().manual_seed(seed)
    p = torch.randn(2, 2, height, width, generator=generator, dtype=torch.float64).softmax(1)
    y = torch.randint(2 if void is None else 3, (2, height, width), generator=generator)
    right, entropy = loop_patches(p, y, window, stride, void)
    result = patch_pavgpu(p, y, 0.55, window=window, stride=stride, void=void)
    assert [int(c) for c in counts_of(result)] == list(loop_counts(right, entropy, 0.55))


def test_an_all_void_image_gives_no_patches_and_no_error() -> None:
    result = patch_pavgpu(torch.full((1, 2, 4, 4), 0.5), torch.full((1, 4, 4), 7), 0.5, void=7)
    assert int(result.total) == 0


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.integers(2, 9))
def test_entropy_lies_between_zero_and_log_classes(seed: int, classes: int) -> None:
    p = torch.randn(5, classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).softmax(1)
    entropy = predictive_entropy(p)
    assert bool((entropy >= 0).all())
    assert bool((entropy <= math.log(classes) + 1e-12).all())
    expected = [-sum(q * math.log(q) for q in row) for row in p.tolist()]
    torch.testing.assert_close(entropy, torch.tensor(expected, dtype=torch.float64))


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="same shape"):
        pavgpu(torch.ones(3), torch.ones(2))
    with pytest.raises(ValueError, match="window=9"):
        patch_pavgpu(torch.ones(1, 2, 4, 4), torch.zeros(1, 4, 4), window=9)
    with pytest.raises(ValueError, match="stride=0"):
        patch_pavgpu(torch.ones(1, 2, 4, 4), torch.zeros(1, 4, 4), stride=0)
    with pytest.raises(ValueError, match="NaN"):
        pavgpu(torch.tensor([True, False]), torch.tensor([math.nan, 0.1]), 0.5)
    with pytest.raises(ValueError, match="outside 0 and 1; pass logits"):
        predictive_entropy(torch.tensor([[2.0, -1.0]]))
    with pytest.raises(ValueError, match=r"sum up to 1\.6"):
        patch_pavgpu(torch.full((1, 2, 4, 4), 0.8), torch.zeros(1, 4, 4), 0.5)
    with pytest.raises(ValueError, match="empty"):
        threshold_grid(torch.zeros(0))
