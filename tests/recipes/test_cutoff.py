"""Cutoff against its formula written out by hand, and what it erases against counting."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sparring as sp
from sparring.sites import Slot

SEQUENCES = ((True,) * 7, (True,) * 4 + (False,) * 3, (False,) * 2 + (True,) * 5)  # padded behind and in front


def _erased(player: sp.Cutoff, times: int = 300) -> list[Tensor]:
    valid = torch.tensor(SEQUENCES).unsqueeze(-1)
    slot = Slot("mask", torch.rand(3, 7, 5) + 1, valid)
    found = []
    for seed in range(times):
        torch.manual_seed(seed)
        drawn = player.draw(slot)
        assert bool(((drawn == 0) | (drawn == slot.value)).all())  # what the layer drew stays elsewhere
        found.append(drawn == 0)
    return found


@pytest.mark.parametrize(("unit", "different"), [("token", math.comb(7, 2)), ("span", 6)])
def test_every_choice_of_positions_is_met_and_no_other(unit: Any, different: int) -> None:
    masks = _erased(sp.Cutoff(0.7, unit))
    choices = []
    for mask in masks:
        assert torch.equal(mask, mask[:, :, :1].expand_as(mask))
        assert mask[:, :, 0].sum(1).tolist() == [2, 1, 1]  # 30% of 7, 4 and 5, rounded down
        assert not bool(mask[~torch.tensor(SEQUENCES)].any())
        choices.append(tuple(mask[0, :, 0].nonzero().flatten().tolist()))
    assert len(set(choices)) == different
    assert all(b == a + 1 for a, b in choices) == (unit == "span")
    assert len({tuple(mask[2, :, 0].tolist()) for mask in masks}) == 5  # each of the positions behind the padding


def test_a_feature_goes_everywhere_at_once() -> None:
    masks = _erased(sp.Cutoff(0.6, "feature"))
    assert all(
        torch.equal(mask, mask[:, :1].expand_as(mask)) and bool((mask[:, 0].sum(1) == 2).all()) for mask in masks
    )
    assert len({tuple(mask[0, 0].tolist()) for mask in masks}) == math.comb(5, 2)


def test_a_tenth_of_ten_is_one() -> None:
    assert (sp.Cutoff(0.9).draw(Slot("mask", torch.ones(4, 10, 1))) == 0).sum(1).tolist() == [[1]] * 4


class Text(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.dropout = nn.Embedding(9, 4), nn.Dropout(0.0)
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(24, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.body(self.dropout(self.embedding(tokens)))


def test_it_is_the_published_loss_and_erased_embeddings_get_no_gradient() -> None:
    torch.manual_seed(0)
    model = Text().double()
    tokens, targets = torch.randint(9, (5, 6)), torch.arange(5) % 3
    lengths = torch.tensor([6, 4, 2, 3, 5])
    seen = []
    handle = model.body.register_forward_pre_hook(lambda _, args: seen.append((args[0] == 0).all(2)))
    loss = sp.recipes.cutoff(model, sp.cross_entropy, at="dropout", keep=0.5, weight=0.7)(
        tokens, targets, torch.arange(6) < lengths.unsqueeze(1)
    )
    handle.remove()
    found = torch.autograd.grad(loss, list(model.parameters()))
    assert not bool(seen[0].any())
    assert torch.equal(seen[-1].sum(1), lengths // 2)  # half of the words; padding is none
    assert not bool((seen[-1] & (torch.arange(6) >= lengths.unsqueeze(1))).any())

    embedded = model.embedding(tokens)
    p = model.body(embedded).softmax(1)
    q = model.body(embedded * ~seen[-1].unsqueeze(2)).softmax(1)
    entropy = lambda r: -(r * r.log()).sum(1)
    divergence = entropy((p + q) / 2) - (entropy(p) + entropy(q)) / 2  # JS as Shannon's entropies have it
    rows = torch.arange(5)
    expected = (-p[rows, targets].log() - q[rows, targets].log() + 0.7 * divergence).mean()
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(found, torch.autograd.grad(expected, list(model.parameters())))


def test_what_does_not_fit_is_said() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 3))
    with pytest.raises(ValueError, match=r"at 1 has shape \(2, 8\): name the dropout layer behind the embeddings"):
        sp.recipes.cutoff(model, sp.cross_entropy, at="1")(torch.randn(2, 4), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match=r"unit='word'.*\"span\""):
        sp.recipes.cutoff(model, sp.cross_entropy, at="1", unit="word")
    with pytest.raises(ValueError, match=r"keep=0.*\(0, 1\]"):
        sp.Cutoff(0.0)
