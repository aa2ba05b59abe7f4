import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import sparring as sp
from sparring.lab.models.birnn import PairSequence, SingleSequence
from sparring.metrics.attention import agreement, explain
from sparring.metrics.correlation import kendall, pearson
from sparring.nn.attention import masked_softmax

TOKENS = torch.tensor([[3, 4, 5, 6, 7], [8, 9, 2, 0, 0], [1, 0, 0, 0, 0]])


def model(attention="additive"):
    torch.manual_seed(0)
    return SingleSequence(12, 5, 8, classes=3, attention=attention).double().eval()


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_correlations_agree_with_scipy(data):
    stats = pytest.importorskip("scipy.stats")
    length = data.draw(st.integers(2, 9))
    values = st.lists(st.integers(-3, 3), min_size=length, max_size=length)
    x, y = (torch.tensor([data.draw(values), data.draw(values)], dtype=torch.double) for _ in range(2))
    valid = torch.arange(length) < torch.tensor([length, data.draw(st.integers(2, length))])[:, None]
    for row in range(2):
        a, b = x[row, valid[row]], y[row, valid[row]]
        linear, ranks = pearson(x, y, valid)[row], kendall(x, y, valid)[row]
        if len(a.unique()) == 1 or len(b.unique()) == 1:
            assert math.isnan(linear)
            assert math.isnan(ranks)
        else:
            assert math.isclose(linear, stats.pearsonr(a, b).statistic, abs_tol=1e-6)
            assert math.isclose(ranks, stats.kendalltau(a, b).statistic, abs_tol=1e-6)


def test_sentences_without_a_word_have_no_correlation():
    nothing = torch.zeros(2, 0)
    assert bool(pearson(nothing, nothing).isnan().all())
    assert bool(kendall(nothing, nothing, nothing.bool()).isnan().all())


def test_what_is_not_a_number_has_no_rank():
    x, y = torch.randn(2, 3, 5)
    x[0, 1] = y[1, 2] = torch.nan
    assert kendall(x, y).isnan().tolist() == [True, True, False]
    assert not kendall(x, y, ~(x + y).isnan()).isnan().any()


def test_padding_may_hold_anything():
    x, y = torch.randn(2, 3, 6)
    valid = torch.arange(6) < torch.tensor([[6], [4], [3]])
    expected = pearson(x, y, valid)
    for anything in (torch.nan, torch.inf, -torch.inf):
        torch.testing.assert_close(pearson(x.masked_fill(~valid, anything), y, valid), expected)


def test_blocks_do_not_change_kendall(monkeypatch):
    x, y = torch.randn(2, 7, 6)
    whole = kendall(x, y)
    monkeypatch.setattr("sparring.metrics.correlation.CELLS", 1)
    assert torch.equal(kendall(x, y), whole)


def by_hand(network, sentence, definition):
    """Importance of one unpadded sentence, with the model written out and the attention detached where the definition says so."""
    vectors = network.embedding(sentence[None]).detach().requires_grad_()
    states, _ = network.encoder(vectors, torch.ones(1, len(sentence)).bool())
    layer = network.attention
    weights = layer.compare(torch.tanh(layer.project(states))).squeeze(-1).softmax(-1)
    if definition == "probability":
        weights = weights.detach()
    logits = network.head((weights[..., None] * states).sum(1))
    best = logits.argmax(-1)
    payoff = logits.softmax(-1)[0, best] if definition == "probability" else nn.functional.cross_entropy(logits, best)
    (gradient,) = torch.autograd.grad(payoff.sum(), vectors)
    raw = (gradient * vectors).sum(-1).abs()[0]
    return weights[0], raw / raw.sum()


@pytest.mark.parametrize("definition", ["probability", "loss"])
def test_importance_equals_the_definition_written_out(definition):
    network = model()
    seen = explain(network, TOKENS, definition=definition)
    for row, length in enumerate((5, 3, 1)):
        weights, importance = by_hand(network, TOKENS[row, :length], definition)
        torch.testing.assert_close(seen.attention[row, :length], weights)
        torch.testing.assert_close(seen.importance[row, :length], importance)
    assert (seen.importance[~seen.valid] == 0).all()
    assert all(p.grad is None for p in network.parameters())
    assert not any(m._forward_hooks for m in network.modules())


def test_the_definitions_differ_only_by_the_attention_where_the_loss_is_monotone():
    """-log p and p have the same gradient up to a factor per sentence, so fixed attention would make the shares equal."""
    network = model()
    with torch.no_grad():
        network.attention.compare.weight.zero_()  # the scores do not depend on the words any more
    first, second = (explain(network, TOKENS, definition=d) for d in ("probability", "loss"))
    torch.testing.assert_close(first.importance, second.importance)


def test_integrated_gradients_are_complete_and_agree_with_their_definition():
    pytest.importorskip("captum", reason="the explain extra is not installed")
    network = model()
    seen = explain(network, TOKENS[:1], definition="integrated", steps=64)
    with torch.no_grad():
        vectors = network.embedding(TOKENS[:1])
    total = torch.zeros_like(vectors)
    knots, weights = _legendre(64)
    for knot, weight in zip(knots, weights, strict=True):
        nudge = ((knot - 1) * vectors).requires_grad_()
        logits = sp.perturbed_call(network, {sp.Words("embedding"): nudge}, TOKENS[:1])
        (gradient,) = torch.autograd.grad(logits.softmax(-1)[0, seen.predicted], nudge)
        total += weight * gradient
    signed = (total * vectors).sum(-1)
    torch.testing.assert_close(seen.importance, signed.abs() / signed.abs().sum(), rtol=1e-6, atol=1e-9)
    probability = network(TOKENS[:1]).softmax(-1)[0, seen.predicted]
    empty = sp.perturbed_call(network, {sp.Words("embedding"): -vectors}, TOKENS[:1]).softmax(-1)[0, seen.predicted]
    torch.testing.assert_close(signed.sum(), (probability - empty).sum(), rtol=1e-6, atol=1e-9)


def _legendre(count):
    numpy = pytest.importorskip("numpy")
    knots, weights = numpy.polynomial.legendre.leggauss(count)
    return (torch.tensor(knots) + 1) / 2, torch.tensor(weights) / 2


def test_a_pair_model_is_explained_over_its_paragraph():
    torch.manual_seed(0)
    network = PairSequence(12, 5, 8, 4).double().eval()
    paragraph, question = TOKENS, torch.tensor([[2, 3], [4, 0], [5, 6]])
    seen = explain(network, (paragraph, question))
    assert seen.importance.shape == paragraph.shape
    assert torch.equal(seen.valid, paragraph != 0)
    pytest.importorskip("captum", reason="the explain extra is not installed")
    assert explain(network, (paragraph, question), definition="integrated", steps=5).importance.shape == paragraph.shape


def test_multi_head_attention_is_read_at_a_query_or_as_the_mean():
    class Tiny(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(12, 8, padding_idx=0)
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
            self.head = nn.Linear(8, 2)

        def forward(self, tokens):
            x = self.embedding(tokens)
            return self.head(self.attention(x, x, x, key_padding_mask=tokens == 0, need_weights=False)[0][:, 0])

    torch.manual_seed(0)
    network = Tiny().double().eval()
    tokens = TOKENS[:2]
    x = network.embedding(tokens)
    _, expected = network.attention(x, x, x, key_padding_mask=tokens == 0)
    seen = explain(network, tokens)
    torch.testing.assert_close(seen.attention, expected[:, 0])
    mean = explain(network, tokens, query=None).attention
    torch.testing.assert_close(mean[1], expected[1, :3].mean(0))
    assert seen.importance.sum(-1).tolist() == pytest.approx([1.0, 1.0])


def test_agreement_is_the_mean_over_the_sentences_that_have_one():
    network = model("dot")
    seen = explain(network, TOKENS)
    result = agreement(network, [TOKENS[:2], TOKENS[2:]])
    assert (result.sentences, result.undefined) == (3, 1)
    assert math.isclose(result.pearson, float(seen.pearson[:2].mean()), rel_tol=1e-5)
    assert math.isclose(result.kendall, float(seen.kendall[:2].mean()), rel_tol=1e-5)
    scores = sp.perturbed_call(network, {sp.Scores("attention"): {}}, TOKENS, record=True)[1][sp.Scores("attention")]
    torch.testing.assert_close(seen.attention, masked_softmax(scores["attention"].detach(), TOKENS != 0))


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (lambda: explain(model(), TOKENS, definition="saliency"), "choose one of probability"),
        (lambda: explain(SingleSequence(12, 5, 8, classes=1), TOKENS), "at least two classes"),
        (lambda: agreement(model(), []), "no batch"),
        (lambda: pearson(torch.zeros(2, 3), torch.zeros(2, 4)), r"\(2, 3\), \(2, 4\)"),
    ],
)
def test_errors_name_what_is_wrong(run, message):
    with pytest.raises(ValueError, match=message):
        run()


def test_leaving_words_out_equals_running_the_shorter_sentences():
    net = model()
    seen = explain(net, TOKENS, definition="leave_one_out")
    whole = net(TOKENS).softmax(-1).detach()
    for row, length in enumerate((5, 3, 1)):
        words = TOKENS[row, :length]
        moved = []
        for t in range(length):
            shorter = (
                torch.cat([words[:t], words[t + 1 :]])[None] if length > 1 else torch.zeros(1, 1, dtype=torch.long)
            )
            moved.append((net(shorter)[0].softmax(-1) - whole[row]).detach().abs().sum().item() / 2)
        expected = torch.tensor(moved) / sum(moved)
        torch.testing.assert_close(seen.importance[row, :length], expected, check_dtype=False)
        assert (seen.importance[row, length:] == 0).all()


def test_words_are_left_out_of_the_first_text_even_if_the_second_is_as_long():
    torch.manual_seed(0)
    net = PairSequence(12, 5, 8).double().eval()
    paragraph, question = torch.tensor([[3, 4, 5]]), torch.tensor([[6, 7, 8]])
    seen = explain(net, (paragraph, question), attention="attention", definition="leave_one_out")
    whole = net(paragraph, question).softmax(-1).detach()
    moved = [
        (net(paragraph[:, [k for k in range(3) if k != t]], question).softmax(-1) - whole).abs().sum() for t in range(3)
    ]
    torch.testing.assert_close(seen.importance[0], torch.stack(moved).detach() / sum(moved).detach(), check_dtype=False)


def test_leaving_out_needs_word_ids_and_a_word_to_fill_up_with():
    net = model()
    net.embedding.padding_idx = None
    with pytest.raises(ValueError, match="pad=0"):
        explain(net, TOKENS, definition="leave_one_out")
    seen = explain(net, TOKENS, at=sp.Words("embedding", pad=0), definition="leave_one_out")
    assert seen.importance.isfinite().all()
