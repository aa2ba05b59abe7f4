"""Ambiguity, gradient similarity and smoothness against their definitions written out one example at a time."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from sparring.ensembles import Ensemble
from sparring.metrics.diversity import ambiguity, gradient_diversity, pairwise_disagreement


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 7), st.integers(1, 12), st.integers(0, 10_000))
def test_ambiguity_follows_equation_seven(members, examples, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(examples, members, 4, generator=generator)
    targets = torch.randint(4, (examples,), generator=generator)
    total = 0.0
    for i in range(examples):
        right = sum(int(logits[i, k].argmax() == targets[i]) for k in range(members))
        total += min(right, members - right) / (members - math.ceil(members / 2))
    assert ambiguity(logits, targets) == pytest.approx(total / examples)
    assert ambiguity(logits.argmax(-1), targets) == ambiguity(logits, targets)


def test_ambiguity_is_one_for_an_even_split_and_zero_for_agreement():
    targets = torch.tensor([0])
    assert ambiguity(torch.tensor([[0, 0, 1, 1]]), targets) == 1
    assert ambiguity(torch.tensor([[0, 1, 1]]), targets) == 1
    assert ambiguity(torch.tensor([[1, 2, 3]]), targets) == 0  # all wrong: no disagreement about being right


def test_disagreement_counts_different_predictions():
    predicted = torch.tensor([[0, 0, 1], [1, 2, 2], [3, 3, 3]])
    third = 1 / 3
    expected = torch.tensor([[0, third, 2 * third], [third, 0, third], [2 * third, third, 0]])
    torch.testing.assert_close(pairwise_disagreement(predicted), expected)


def test_gradients_match_one_example_at_a_time():
    torch.manual_seed(0)
    nets = [nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double() for _ in range(3)]
    ensemble = Ensemble(nets, head="3").eval()
    x, y = torch.rand(7, 2, 3, dtype=torch.float64), torch.randint(3, (7,))
    found = gradient_diversity(ensemble, x, y, chunk=3)
    for i in range(7):
        grads = []
        for net in nets:
            one = x[i : i + 1].clone().requires_grad_()
            nn.functional.cross_entropy(net(one), y[i : i + 1]).backward()
            grads.append(one.grad.flatten())
        pairs = [a @ b / (a.norm() * b.norm()) for a, b in itertools.combinations(grads, 2)]
        assert float(found.similarity[i]) == pytest.approx(float(sum(pairs)), abs=1e-12)
        assert float(found.smoothness[i]) == pytest.approx(float(sum(g.norm() for g in grads)), abs=1e-12)
    assert found.vanished == 0
    matrix = found.pairs()
    assert torch.equal(matrix, matrix.T)
    assert float(matrix[0, 2]) == pytest.approx(float(found.cosines[:, 1].mean()))
    assert found.quantiles((0.5,))["smoothness"][0] == pytest.approx(float(found.smoothness.median()))


def test_scaling_logits_shrinks_norms_but_not_directions():
    """Saturation makes a network look smooth; with two classes the direction of its gradient stays exactly the same."""
    torch.manual_seed(0)
    nets = [nn.Sequential(nn.Linear(4, 2)).double() for _ in range(2)]
    x = torch.randn(200, 4, dtype=torch.float64)
    predicted = Ensemble(nets, head="0")(x).members.argmax(-1)
    agreed = predicted[:, 0] == predicted[:, 1]
    x, y = x[agreed], predicted[agreed, 0]
    before = gradient_diversity(Ensemble(nets, head="0"), x, y)
    for p in itertools.chain(*(net.parameters() for net in nets)):
        p.data *= 100
    after = gradient_diversity(Ensemble(nets, head="0"), x, y)
    assert after.smoothness.median() < 1e-3 * before.smoothness.median()
    torch.testing.assert_close(after.cosines[after.norms.amin(1) > 0], before.cosines[after.norms.amin(1) > 0])


def test_inputs_without_members_are_refused():
    with pytest.raises(ValueError, match="holds 1 member"):
        ambiguity(torch.zeros(3, 1, 4), torch.zeros(3, dtype=torch.long))
    with pytest.raises(ValueError, match=r"shape \(3, 4\)"):
        ambiguity(torch.zeros(3, 4), torch.zeros(3, dtype=torch.long))
    with pytest.raises(ValueError, match=r"shape \(3, 4\)"):
        pairwise_disagreement(torch.zeros(3, 4))


def test_targets_that_do_not_fit_the_examples_are_refused():
    ensemble = Ensemble([nn.Sequential(nn.Linear(4, 3)) for _ in range(2)], head="0").eval()
    for targets in (torch.zeros(4, 1, dtype=torch.long), torch.zeros(2, dtype=torch.long)):
        with pytest.raises(ValueError, match="one class for each of 4 examples"):
            ambiguity(torch.randn(4, 2, 3), targets)
        with pytest.raises(ValueError, match="one class for each of 4 examples"):
            gradient_diversity(ensemble, torch.rand(4, 4), targets, chunk=2)


def test_running_averages_do_not_move_in_training_mode():
    nets = [nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)) for _ in range(2)]
    ensemble = Ensemble(nets, head="2").train()
    before = {name: value.clone() for name, value in ensemble.state_dict().items()}
    gradient_diversity(ensemble, torch.rand(5, 4), torch.zeros(5, dtype=torch.long))
    assert all(torch.equal(value, before[name]) for name, value in ensemble.state_dict().items())


def test_gradients_are_measured_under_inference_mode_too():
    ensemble = Ensemble([nn.Sequential(nn.Linear(4, 3)) for _ in range(2)], head="0").eval()
    x, y = torch.rand(5, 4), torch.zeros(5, dtype=torch.long)
    expected = gradient_diversity(ensemble, x, y)
    with torch.inference_mode():
        found = gradient_diversity(ensemble, x + 0, y + 0)
    assert torch.equal(found.norms, expected.norms)
