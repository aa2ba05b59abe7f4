"""Weight drop, locked dropout and embedding dropout."""

import copy

import pytest
import torch
from torch import Tensor, nn

import sparring as sp


def test_weight_drop_never_touches_the_parameters() -> None:
    rnn = nn.LSTM(3, 5)
    layer, before = sp.nn.WeightDrop(rnn, 0.5), copy.deepcopy(rnn.state_dict())
    x = torch.randn(6, 4, 3)
    layer(x)[0].sum().backward()
    assert all(torch.equal(before[k], v) for k, v in rnn.state_dict().items())
    assert {name for name, _ in layer.named_parameters()} == {f"module.{name}" for name, _ in rnn.named_parameters()}
    assert all(p.grad is not None for p in rnn.parameters())


def test_weight_drop_is_dropout_of_the_recurrent_weight() -> None:
    rnn, x = nn.GRU(3, 5, num_layers=2), torch.randn(6, 4, 3)
    layer, twin = sp.nn.WeightDrop(rnn, 0.4), copy.deepcopy(rnn)
    masks = layer.draw_weights()
    for i, mask in enumerate(masks):
        torch.testing.assert_close(mask.unique(), torch.tensor([0.0, 1 / 0.6]))
        getattr(twin, f"weight_hh_l{i}").data.mul_(mask)
    torch.testing.assert_close(layer(x, weights=masks)[0], twin(x)[0])
    assert not torch.equal(layer(x)[0], layer(x)[0])
    layer.eval()
    torch.testing.assert_close(layer(x)[0], rnn(x)[0])
    assert all(bool((mask == 1).all()) for mask in layer.draw_weights())


def test_weight_drop_keeps_the_share_of_weights() -> None:
    (mask,) = sp.nn.WeightDrop(nn.LSTM(1, 100), 0.3).draw_weights()
    assert float((mask == 0).float().mean()) == pytest.approx(0.3, abs=0.01)
    assert float(mask.mean()) == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("weights", [[torch.ones(20, 5)], [torch.ones(20, 5), torch.ones(5, 5)]])
def test_multipliers_must_be_one_for_each_connection(weights: list[Tensor]) -> None:
    lstm = sp.nn.WeightDrop(nn.LSTM(3, 5, num_layers=2), 0.5)
    with pytest.raises(ValueError, match=r"2 tensors of shape \(20, 5\)"):
        lstm(torch.randn(4, 2, 3), weights=weights)


def test_weight_drop_refuses_what_it_cannot_do() -> None:
    with pytest.raises(TypeError, match=r"wraps an nn\.LSTM"):
        sp.nn.WeightDrop(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="drop rate"):
        sp.nn.WeightDrop(nn.LSTM(2, 2), 1.0)
    with pytest.raises(ValueError, match="projections"):
        sp.nn.WeightDrop(nn.LSTM(2, 4, proj_size=2))


@pytest.mark.parametrize("time", [0, 1])
def test_locked_dropout_is_the_same_at_every_step_and_differs_between_examples(time: int) -> None:
    layer, x = sp.nn.LockedDropout(0.5, time=time), torch.ones(7, 8, 20)
    y = layer(x)
    kept = y != 0
    first = kept.narrow(time, 0, 1)
    assert bool((kept == first).all())
    assert not bool((kept == kept.narrow(1 - time, 0, 1)).all())
    assert set(y.unique().tolist()) == {0.0, 2.0}
    layer.eval()
    assert torch.equal(layer(x), x)


def test_locked_dropout_is_a_mask_site_and_a_monte_carlo_dropout() -> None:
    model = nn.Sequential(sp.nn.LockedDropout(0.5))
    x, mask = torch.randn(3, 4, 5), torch.rand(3, 1, 5)
    assert torch.equal(sp.perturbed_call(model, {sp.Mask("0"): mask}, x), x * mask)
    found = sp.predict(model.eval(), x, samples=3, keep_samples=True)
    assert not torch.equal(found.samples[0], found.samples[1])


def test_embedding_dropout_drops_word_types() -> None:
    layer = sp.nn.EmbeddingDropout(nn.Embedding(50, 3), 0.5)
    layer.embedding.weight.data.fill_(1.0)
    tokens = torch.randint(50, (6, 40))
    vectors = layer(tokens)
    for word in tokens.unique():
        assert len(vectors[tokens == word].unique()) == 1
    assert set(vectors.unique().tolist()) == {0.0, 2.0}
    vectors.sum().backward()
    dropped = tokens[(vectors == 0).all(-1)].unique()
    assert bool((layer.weight.grad[dropped] == 0).all())
    layer.eval()
    assert torch.equal(layer(tokens), layer.embedding(tokens))
    with pytest.raises(ValueError, match="drop rate"):
        sp.nn.EmbeddingDropout(nn.Embedding(2, 2), -0.1)
