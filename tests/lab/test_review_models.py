"""Readers of reviews: normalised word vectors, truncated gradients, sampled softmax."""

import pytest
import torch
from torch.nn import functional as F

import sparring as sp
from sparring.lab.models.language.reviews import ReviewClassifier, WordVectors
from sparring.lab.models.language.sampled import sampled_surprise

SHARE = torch.tensor([0.0, 0.1, 0.2, 0.3, 0.4])


def test_word_vectors_have_mean_zero_and_variance_one_over_the_corpus() -> None:
    """Drawn as often as they occur: the vectors themselves, not the formula."""
    layer = WordVectors(SHARE, 3, drop=0.0)
    torch.nn.init.normal_(layer.weight, 2.0, 5.0)
    words = torch.cat([torch.full((round(1000 * float(share)),), k) for k, share in enumerate(SHARE)])
    seen = layer(words[None])[0]
    assert torch.allclose(seen.mean(0), torch.zeros(3), atol=1e-5)
    assert torch.allclose(seen.var(0, correction=0), torch.ones(3), atol=1e-5)


def test_dropout_of_word_vectors_is_one_mask_a_text() -> None:
    layer = WordVectors(SHARE, 40, drop=0.5)
    kept = layer(torch.randint(1, 5, (3, 9))) != 0
    assert bool((kept == kept[:, :1]).all())
    assert not bool((kept[0] == kept[1]).all())


def classifier(truncate: int) -> ReviewClassifier:
    torch.manual_seed(0)
    return ReviewClassifier(SHARE, 6, 8, drop=0.0, truncate=truncate)


def test_pieces_give_the_same_predictions_as_the_whole() -> None:
    tokens = torch.tensor([[1, 2, 3, 4, 1, 2, 3], [4, 3, 2, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0], [2, 2, 2, 2, 2, 2, 0]])
    whole = classifier(400)(tokens)
    for truncate in (1, 2, 3, 6, 7):
        assert torch.allclose(classifier(truncate)(tokens), whole, atol=1e-6), truncate
    alone = torch.cat([classifier(3)(row[row != 0][None]) for row in tokens])
    assert torch.allclose(alone, whole, atol=1e-6)  # padding and neighbours change nothing


def test_gradients_stop_at_the_border_of_a_piece() -> None:
    model = classifier(3)
    tokens = torch.tensor([[1, 2, 3, 4, 1], [1, 2, 3, 0, 0]])
    site = sp.Output("embedding")
    change = torch.zeros(2, 5, 6, requires_grad=True)
    outputs = sp.perturbed_call(model, {site: change}, tokens)
    (slope,) = torch.autograd.grad(outputs.sum(), change)
    reached = slope.abs().sum(-1) > 0
    assert reached.tolist() == [[False, False, False, True, True], [True, True, True, False, False]]


def test_the_whole_vocabulary_is_the_cross_entropy() -> None:
    h, table, bias, words = torch.randn(7, 4), torch.randn(5, 4), torch.randn(5), torch.randint(1, 5, (7,))
    plain = F.cross_entropy(h @ table.t() + bias, words, reduction="none")
    for count in (0, 3, 99):
        assert torch.allclose(sampled_surprise(h, words, table, bias, SHARE, count), plain, atol=1e-5)


def test_a_sample_estimates_the_normaliser() -> None:
    """Of a target that is always drawn, the corrected sum over the others is right on average."""
    torch.manual_seed(0)
    share = torch.rand(60) + 0.05
    share[7] = 40.0
    share /= share.sum()
    h, table, bias = torch.randn(1, 4), torch.randn(60, 4) * 0.5, torch.randn(60) * 0.1
    logits = (h @ table.t() + bias)[0]
    odds = (logits.exp().sum() - logits[7].exp()) / logits[7].exp()
    found = [float(sampled_surprise(h, torch.tensor([7]), table, bias, share, 15).exp() - 1) for _ in range(3000)]
    assert float(torch.tensor(found).mean()) == pytest.approx(float(odds), rel=0.03)


def test_sampled_training_moves_like_the_whole_vocabulary() -> None:
    """The mean of the sampled gradients points where the exact one does."""
    torch.manual_seed(0)
    share = torch.ones(50) / 50
    table, bias, words = torch.randn(50, 6) * 0.3, torch.zeros(50), torch.randint(50, (20,))
    h = torch.randn(20, 6, requires_grad=True)
    exact = torch.autograd.grad(sampled_surprise(h, words, table, bias, share, 0).sum(), h)[0]
    mean = torch.zeros_like(exact)
    for _ in range(300):
        mean += torch.autograd.grad(sampled_surprise(h, words, table, bias, share, 25).sum(), h)[0] / 300
    assert float(F.cosine_similarity(mean.flatten(), exact.flatten(), dim=0)) > 0.99
