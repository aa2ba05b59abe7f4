"""Priority dropouts against literal per-unit oracles, their invariants, and their errors."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sparring.ensembles import EnsembleDropout, LaplacePriorityDropout, PriorityDiversifiedDropout, counting

LEVELS = [0.0, -0.3, 0.05, 0.1, 0.1000001, 0.15, 0.3, 0.95, 1.7, 12.34]


def laplace_rates(features, interval, alpha, beta, scale, gamma, threshold=0.0, batchwise=False):
    """Algorithm 1 line by line on nested lists: features[k][b][u] -> keep rates of the same nesting."""
    members, rows = len(features), len(features[0])
    highest = alpha / (2 * scale) + beta
    groups = [list(range(rows))] if batchwise else [[b] for b in range(rows)]
    rates = [[[highest] * len(features[k][b]) for b in range(rows)] for k in range(members)]
    for group in groups:
        counts = [{} for _ in range(members)]
        for k in range(members):
            for b in group:
                for v in features[k][b]:
                    if v > threshold:
                        level = bin_of(v, interval)
                        counts[k][level] = counts[k].get(level, 0) + 1
        totals = {}
        for k in range(members):
            for level, n in counts[k].items():
                totals[level] = totals.get(level, 0) + n
        ranked = sorted(sorted(totals), key=lambda level: -totals[level])
        if not ranked:
            continue
        for k in range(members):
            priority = (ranked[min(k, len(ranked) - 1)] + 0.5) * interval
            active = sum(counts[k].values())
            for b in group:
                for u, v in enumerate(features[k][b]):
                    if v > threshold:
                        level = bin_of(v, interval)
                        z = gamma * counts[k][level] / active * (priority - (level + 0.5) * interval) ** 2
                        rates[k][b][u] = alpha * (1 / (2 * scale)) * math.exp(-z / scale) + beta
    return rates


def bin_of(value, interval):
    """Eq. 3 as an integer, in the precision of the activations: exact multiples of s fall in the bin below."""
    return math.ceil(np.float32(value) / np.float32(interval)) - 1


def diversified_rates(features, intervals, alpha, beta, batchwise=False):
    """Eq. 2 with equal intervals over the span of all units, one unit at a time."""
    members, rows = len(features), len(features[0])
    groups = [list(range(rows))] if batchwise else [[b] for b in range(rows)]
    rates = [[[None] * len(features[k][b]) for b in range(rows)] for k in range(members)]
    for group in groups:
        everything = [np.float32(v) for k in range(members) for b in group for v in features[k][b]]
        low, width = min(everything), max(everything) - min(everything)
        counts = [[0] * intervals for _ in range(members)]

        def place(v, low=low, width=width):
            position = (np.float32(v) - low) * np.float32(intervals) / (width if width > 0 else np.float32(1))
            return min(math.floor(position), intervals - 1)

        for k in range(members):
            for b in group:
                for v in features[k][b]:
                    counts[k][place(v)] += 1
        totals = [sum(column) for column in zip(*counts)]
        ranked = [m for m in sorted(range(intervals), key=lambda m: -totals[m]) if totals[m]]
        for k in range(members):
            own = ranked[min(k, len(ranked) - 1)]
            for b in group:
                for u, v in enumerate(features[k][b]):
                    m = place(v)
                    rates[k][b][u] = alpha if m == own else beta * (1 - counts[k][m] / sum(counts[k]))
    return rates


@st.composite
def activations(draw, even=True):
    """K members' features with many ties, exact bin edges, few distinct bins, and rows where nobody is active."""
    members = draw(st.integers(2, 6))
    rows = draw(st.integers(1, 4))
    palette = draw(st.lists(st.sampled_from(LEVELS) | st.floats(-1, 5, width=32), min_size=1, max_size=5))
    sizes = [draw(st.integers(1, 9))] * members if even else [draw(st.integers(1, 9)) for _ in range(members)]
    features = []
    for size in sizes:
        picks = draw(hnp.arrays("int64", (rows, size), elements=st.integers(0, len(palette) - 1)))
        features.append(torch.tensor(palette, dtype=torch.float32)[torch.from_numpy(picks)])
    if draw(st.booleans()):
        for tensor in features:
            tensor[0] = 0.0
    return features


def assert_rates(rates, expected):
    for got, want in zip(rates, expected, strict=True):
        torch.testing.assert_close(got, torch.tensor(want, dtype=torch.float32), rtol=2e-5, atol=2e-6)


@settings(max_examples=150, deadline=None)
@given(
    activations(even=False),
    st.sampled_from([(0.1, 0.85, 0.127, 0.5), (0.25, 0.4, 0.3, 0.3), (0.1, 0.0, 0.5, 1.0)]),
    st.sampled_from([0.0, 10.0, 1000.0]),
    st.sampled_from([0.0, 0.12, -0.5]),
    st.booleans(),
)
def test_laplace_follows_algorithm_one(features, parameters, gamma, threshold, batchwise):
    interval, alpha, beta, scale = parameters
    dropout = LaplacePriorityDropout(*parameters, gamma, threshold, batchwise=batchwise, uneven=True)
    nested = [tensor.tolist() for tensor in features]
    expected = laplace_rates(nested, interval, alpha, beta, scale, gamma, threshold, batchwise)
    assert_rates(dropout.keep_rates(features), expected)


@settings(max_examples=150, deadline=None)
@given(activations(even=False), st.sampled_from([2, 5, 10, 20]), st.booleans())
def test_diversified_follows_equation_two(features, intervals, batchwise):
    dropout = PriorityDiversifiedDropout(intervals, batchwise=batchwise, uneven=True)
    nested = [tensor.tolist() for tensor in features]
    assert_rates(dropout.keep_rates(features), diversified_rates(nested, intervals, 0.9, 0.1, batchwise))


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 6), st.integers(1, 9), st.integers(0, 100))
def test_fewer_populated_bins_than_members_repeat_the_last(members, populated, seed):
    totals = torch.zeros(1, 9)
    where = torch.randperm(9, generator=torch.Generator().manual_seed(seed))[:populated]
    totals[0, where] = torch.arange(populated, 0, -1.0)
    chosen = counting.priorities(totals, members)[0].tolist()
    ranked = where.tolist()
    assert chosen == [ranked[min(k, populated - 1)] for k in range(members)]


@settings(max_examples=80, deadline=None)
@given(activations(), st.floats(0, 1e4))
def test_rates_lie_between_beta_and_the_ceiling_and_examples_are_independent(features, gamma):
    dropout = LaplacePriorityDropout(gamma=gamma)
    rates = dropout.keep_rates(features)
    joined = torch.cat(rates, 1)
    assert ((joined >= 0.127 - 1e-6) & (joined <= 0.977 + 1e-6)).all()
    alone = [dropout.keep_rates([tensor[b : b + 1] for tensor in features]) for b in range(len(joined))]
    for k, rate in enumerate(rates):
        assert torch.equal(rate, torch.cat([row[k] for row in alone]))


def test_all_inactive_rows_get_the_ceiling():
    rates = LaplacePriorityDropout().keep_rates([torch.zeros(2, 3), -torch.ones(2, 3)])
    assert_rates(rates, [[[0.977] * 3] * 2] * 2)


def test_enormous_activations_use_only_the_bins_that_occur():
    features = [torch.tensor([[1e-3, 7.0, 1e6, 1e9]]), torch.tensor([[3e4, 1e9, 0.2, 0.2]])]
    expected = laplace_rates([tensor.tolist() for tensor in features], 0.1, 0.85, 0.127, 0.5, 1e-3)
    assert_rates(LaplacePriorityDropout(gamma=1e-3).keep_rates(features), expected)
    with pytest.raises(ValueError, match="wider interval"):
        LaplacePriorityDropout(batchwise=True).keep_rates(features)


def test_a_unit_just_above_the_threshold_stays_in_the_first_bin():
    """In single precision 2.1000001 / 0.3 rounds to 7, one bin below the one of the threshold's own quotient."""
    just = float(np.nextafter(np.float32(2.1), np.float32(9)))
    dropout = LaplacePriorityDropout(interval=0.3, threshold=2.1, gamma=50.0)
    rates = dropout.keep_rates([torch.tensor([[just, just, 2.5]]), torch.tensor([[2.2, 2.5, 0.0]])])
    first, far = 0.977, 0.85 * math.exp(-50 / 3 * 0.3**2 / 0.5) + 0.127  # priorities 2.25 and 2.55
    near = 0.85 * math.exp(-50 / 2 * 0.3**2 / 0.5) + 0.127
    assert_rates(rates, [[[first, first, far]], [[near, first, first]]])


def test_half_precision_keeps_the_rates_numbers():
    features = [torch.tensor([[0.25, 0.95]]), torch.tensor([[0.25, 0.55]])]
    rates = LaplacePriorityDropout(gamma=1e6).half().keep_rates([tensor.half() for tensor in features])
    assert_rates(rates, [[[0.977, 0.127]], [[0.127, 0.977]]])


def test_non_finite_units_stay_out_of_the_statistics():
    dropout = LaplacePriorityDropout()
    clean = [torch.tensor([[0.2, 0.3]]), torch.tensor([[0.2, 0.9]])]
    dirty = [torch.cat([clean[0], torch.tensor([[float("nan")]])], 1), torch.cat([clean[1], torch.tensor([[1e39]])], 1)]
    for got, want in zip(dropout.keep_rates(dirty), dropout.keep_rates(clean)):
        assert torch.equal(got[:, :2], want)
        assert float(got[0, 2]) == pytest.approx(0.977)


@pytest.mark.parametrize(
    "dropout",
    [LaplacePriorityDropout(), PriorityDiversifiedDropout(), EnsembleDropout(0.3, rescale=False)],
    ids=lambda d: type(d).__name__,
)
def test_mask_frequencies_match_the_keep_rates(dropout):
    torch.manual_seed(0)
    features = [torch.rand(1, 40) * 2 + 0.01 for _ in range(3)]
    draws = 4000
    rates = dropout.keep_rates([tensor.expand(draws, -1) for tensor in features])
    masked = dropout([tensor.expand(draws, -1) for tensor in features])
    for tensor, rate, out in zip(features, rates, masked):
        kept = (out != 0).float().mean(0)
        spread = (rate[0] * (1 - rate[0]) / draws).sqrt()
        assert ((kept - rate[0]).abs() <= 5 * spread + 1e-9).all()
        assert torch.isin(out / tensor, torch.tensor([0.0, 1.0])).all()


def test_rescaled_masks_keep_the_expectation():
    torch.manual_seed(0)
    dropout = LaplacePriorityDropout(rescale=True)
    features = [torch.rand(1, 30) + 0.01 for _ in range(3)]
    rates = dropout.keep_rates(features)
    masked = dropout([tensor.expand(20000, -1) for tensor in features])
    for tensor, rate, out in zip(features, rates, masked):
        spread = tensor * ((1 - rate) / rate / 20000).sqrt()
        assert ((out.mean(0) - tensor[0]).abs() <= 5 * spread[0] + 1e-6).all()


@pytest.mark.parametrize("dropout", [LaplacePriorityDropout(), PriorityDiversifiedDropout(), EnsembleDropout(0.3)])
def test_evaluation_changes_nothing(dropout):
    features = [torch.rand(3, 5), torch.rand(3, 5)]
    assert all(torch.equal(a, b) for a, b in zip(dropout.eval()(features), features))
    dropout.train()


def test_masks_are_constants_for_the_gradient():
    torch.manual_seed(0)
    features = [torch.rand(3, 8, requires_grad=True) for _ in range(2)]
    masked = LaplacePriorityDropout(rescale=True)(features)
    grads = torch.autograd.grad(sum(out.sum() for out in masked), features)
    for tensor, out, grad in zip(features, masked, grads):
        torch.testing.assert_close(grad, out.detach() / tensor.detach())


def test_half_precision_features_are_counted_in_single_precision():
    features = [torch.rand(3, 8) for _ in range(2)]
    halves = [tensor.bfloat16() for tensor in features]
    rates = LaplacePriorityDropout().keep_rates(halves)
    same = LaplacePriorityDropout().keep_rates([tensor.float() for tensor in halves])
    assert all(torch.equal(a, b) for a, b in zip(rates, same))
    assert LaplacePriorityDropout()(halves)[0].dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: LaplacePriorityDropout(scale=0.4), r"scale=0.4 give keep rates up to 1.19.*at least 0.4868"),
        (lambda: LaplacePriorityDropout(alpha=0.0, beta=1.2), "beta below 1"),
        (lambda: LaplacePriorityDropout(interval=0.0), "interval=0.0 must be a positive"),
        (lambda: LaplacePriorityDropout(gamma=-1.0), "gamma=-1.0 must not be negative"),
        (lambda: PriorityDiversifiedDropout(alpha=1.1), r"alpha=1.1 would give keep rates outside \[0, 1\]"),
        (lambda: PriorityDiversifiedDropout(intervals=1), "intervals=1"),
        (lambda: EnsembleDropout(1.5), "keep=1.5"),
        (lambda: LaplacePriorityDropout().keep_rates([torch.ones(2, 3)]), "it got 1, needs at least 2"),
        (
            lambda: LaplacePriorityDropout().keep_rates([torch.ones(2, 3), torch.ones(2, 4)]),
            "have 3, 4 features.*uneven",
        ),
        (lambda: PriorityDiversifiedDropout().keep_rates([torch.ones(2, 3), torch.ones(2, 4)]), "uneven=True"),
        (lambda: LaplacePriorityDropout().keep_rates([torch.ones(2, 3, 1), torch.ones(2, 3, 1)]), r"shape \(2, 3, 1\)"),
        (lambda: LaplacePriorityDropout().keep_rates([torch.ones(2, 3), torch.ones(5, 3)]), r"saw \[2, 5\] examples"),
    ],
)
def test_bad_settings_are_refused_by_name(make, match):
    with pytest.raises(ValueError, match=match):
        make()


def test_the_published_ceiling():
    assert float(
        torch.cat(LaplacePriorityDropout(gamma=0.0).keep_rates([torch.rand(1, 4)] * 2)).max()
    ) == pytest.approx(0.977)


def test_crowded_bins_are_kept_less_as_equation_four_says():
    """The paper's text says the opposite of its equation; two bins at the same distance tell them apart."""
    own, near, far = [0.55] * 6, [0.15] * 4, [0.95]
    features = [torch.tensor([own + near + far]), torch.tensor([own + near + far])]
    rates = LaplacePriorityDropout(gamma=20.0).keep_rates(features)[0][0]
    assert rates[0] == pytest.approx(0.977)  # the member's priority
    assert rates[6] < rates[10] < rates[0]  # four units at distance .4 against one at distance .4


def test_the_lowest_rate_is_beta_not_the_mean():
    features = [torch.rand(200, 50, generator=torch.Generator().manual_seed(k)) * 3 for k in range(3)]
    rates = torch.cat(LaplacePriorityDropout(gamma=1e6).keep_rates(features), 1)
    assert rates.min() == pytest.approx(0.127)
    assert rates.mean() > 0.127 + 0.01


def test_crowded_and_empty_bins_of_one_member_differ_by_its_density():
    """Equation 4 by hand: two members, bins of width 1, 3 of 4 units of a member in one bin and 1 in the next."""
    features = [torch.tensor([[0.5, 0.5, 0.5, 1.5]]), torch.tensor([[0.5, 1.5, 1.5, 1.5]])]
    dropout = LaplacePriorityDropout(interval=1.0, gamma=1.0)
    taken, distance = dropout.bin_distances(features)
    distance = distance[..., taken.counts[0].sum(0) > 0]
    # Both bins hold 4 units: the first is member 0's own, the second member 1's; (c_own - c)^2 is 0 or 1, times the density.
    torch.testing.assert_close(distance[0], torch.tensor([[0.0, 0.25], [0.25, 0.0]]))
