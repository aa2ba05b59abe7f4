"""Remark 1, Proposition 1, the exact adversary, and the analyses behind the paper's figures."""

from math import comb

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import sparring as sp
from sparring.metrics import (
    decompose,
    dropout_decomposition,
    masks_within,
    mean_adversarial_mask,
    perturb,
    regularisers,
    subnetwork_accuracies,
    worst_masks,
)


class Last(nn.Module):
    def __init__(self, size: int, scale: float = 2.0) -> None:
        super().__init__()
        self.rnn = nn.LSTM(3, size, batch_first=True, dtype=torch.float64)
        self.head = nn.Linear(size, 4, dtype=torch.float64)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.mul_(scale)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0][:, -1])


def inputs(batch: int = 5) -> Tensor:
    return torch.randn(batch, 6, 3, dtype=torch.float64)


@given(samples=st.integers(2, 30), outputs=st.integers(1, 6), seed=st.integers(0, 10**6))
def test_remark_1_is_an_identity(samples: int, outputs: int, seed: int) -> None:
    torch.manual_seed(seed)
    p, q = torch.randn(samples, 3, outputs, dtype=torch.float64), torch.randn(samples, 3, outputs, dtype=torch.float64)
    torch.testing.assert_close(decompose(p, q).total, (p - q).square().sum(-1).mean(0), rtol=0, atol=1e-8)


def test_remark_1_on_a_model_with_its_adversary() -> None:
    model, x = Last(8), inputs()
    site, player = sp.Recurrent("rnn", keep=0.8), sp.GreedyFlip(sp.Flips(0.3))
    torch.manual_seed(1)
    found = dropout_decomposition(model, x, site, player, samples=6, penalty=sp.probability_error)
    torch.manual_seed(1)
    distances = []
    for _ in range(6):
        once = perturb(model, x, site, player, sp.probability_error)
        distances.append(sp.probability_error(once.clean, once.perturbed))
    torch.testing.assert_close(found.total, torch.stack(distances).mean(0), rtol=0, atol=1e-8)
    assert bool((found.variance > 0).all())


@pytest.mark.parametrize("rescale", [True, False])
def test_proposition_1_by_brute_force(rescale: bool) -> None:
    for seed in range(6):
        torch.manual_seed(seed)
        found = regularisers(Last(6), inputs(), sp.Recurrent("rnn"), size=6, flips=3, keep=0.8, rescale=rescale)
        assert found.ordered
        assert bool((found.fraternal > 0).all())
        assert bool((found.expectation_linear < found.adversarial).all())


def test_fraternal_by_pairs() -> None:
    """E ||p1 - p2||^2 over all pairs of masks, written out."""
    model, x, site = Last(4), inputs(3), sp.Recurrent("rnn")
    found = regularisers(model, x, site, size=4, flips=4, keep=0.7, rescale=False)
    masks = list(masks_within(4, 4, torch.float64))
    weights = [0.7 ** int(m.sum()) * 0.3 ** int(4 - m.sum()) for m in masks]
    assert sum(weights) == pytest.approx(1.0)
    rows = [sp.perturbed_call(model, {site: m.expand(3, 4)}, x).detach().softmax(-1) for m in masks]
    pairs = sum(a * b * (p - q).square().sum(-1) for a, p in zip(weights, rows) for b, q in zip(weights, rows))
    torch.testing.assert_close(found.fraternal, pairs)


def test_enumeration_is_complete_and_the_exact_adversary_is_the_best_of_it() -> None:
    masks = list(masks_within(6, 3))
    assert len(masks) == sum(comb(6, k) for k in range(4)) == len({tuple(m.tolist()) for m in masks})
    model, x, site = Last(6), inputs(), sp.Recurrent("rnn")
    found = worst_masks(model, x, site, size=6, flips=3)
    every = torch.stack(
        [sp.js(model(x), sp.perturbed_call(model, {site: (m / m.mean()).double().expand(5, 6)}, x)) for m in masks]
    )
    torch.testing.assert_close(found.divergence, every.amax(0).detach())
    for mask, i in zip(found.masks, every.argmax(0)):
        assert torch.equal(mask, masks[i])
    for rounds in (1, 2):
        greedy = perturb(model, x, site, sp.GreedyFlip(sp.Flips(0.5), rounds)).divergence
        assert bool((greedy <= found.divergence + 1e-12).all())


def test_too_many_masks_are_refused() -> None:
    with pytest.raises(ValueError, match="use fewer units"):
        worst_masks(Last(8), inputs(), sp.Recurrent("rnn"), size=100, flips=6)


def test_asking_a_player_leaves_no_trace() -> None:
    model, x = Last(8), inputs()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    perturb(model, x, sp.Recurrent("rnn"), sp.GreedyFlip(sp.Flips(0.3)))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert "forward" not in model.rnn.__dict__


def test_running_averages_do_not_move_in_training_mode() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 3)).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    subnetwork_accuracies(
        model, torch.randn(8, 4), torch.zeros(8).long(), sp.Mask(), sp.GreedyFlip(sp.Flips(0.5)), count=2
    )
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_adversarial_subnetworks_are_worse_than_random_ones() -> None:
    """Fig. 3 (a) in small: a model that is right on its own predictions loses more to the adversary."""
    model, x = Last(20, scale=3.0), inputs(200)
    targets = model(x).argmax(-1)
    player = sp.GreedyFlip(sp.Flips(0.15), steps=2)
    found = subnetwork_accuracies(model, x, targets, sp.Recurrent("rnn"), player, keep=0.85, count=6)
    assert found.random.shape == found.adversarial.shape == (6,)
    assert found.adversarial.mean() < found.random.mean() < 1
    with pytest.raises(ValueError, match=r"predicts \(200,\) classes for targets \(200, 1\)"):
        subnetwork_accuracies(model, x, targets[:, None], sp.Recurrent("rnn"), player, count=1)


def test_the_mean_mask_counts_how_often_each_unit_survives() -> None:
    model, x, player = Last(10), inputs(50), sp.GreedyFlip(sp.Flips(0.3), steps=2)
    torch.manual_seed(2)
    (kept,) = mean_adversarial_mask(model, x, sp.Recurrent("rnn"), player)
    torch.manual_seed(2)
    masks = perturb(model, x, sp.Recurrent("rnn"), player).values[0]
    for unit in range(10):
        assert float(kept[unit]) == sum(float(mask[unit] != 0) for mask in masks) / 50
    assert 1 <= float((1 - kept).sum()) <= 3 + 1e-9
