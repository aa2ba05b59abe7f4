import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from sparring.nn.attention import AdditiveAttention, ScaledDotAttention, masked_softmax

LAYERS = {
    "additive": (lambda: AdditiveAttention(6), None),
    "additive pair": (lambda: AdditiveAttention(6, size=5, query_features=4), 4),
    "dot": (lambda: ScaledDotAttention(6), None),
    "dot pair": (lambda: ScaledDotAttention(6, query_features=6), 6),
    "dot pair, other width": (lambda: ScaledDotAttention(6, query_features=4), 4),
}


@pytest.fixture(params=LAYERS, ids=list(LAYERS))
def layer(request):
    torch.manual_seed(0)
    build, width = LAYERS[request.param]
    return build().double(), width


def call(layer, width, hidden, valid=None):
    query = None if width is None else torch.linspace(-1, 1, len(hidden) * width, dtype=hidden.dtype).view(-1, width)
    return layer(hidden, query=query, valid=valid)


def test_padded_batch_equals_the_unpadded_sentences(layer):
    module, width = layer
    lengths = [5, 3, 1]
    hidden = torch.randn(3, 5, 6, dtype=torch.double)
    valid = torch.arange(5) < torch.tensor(lengths)[:, None]
    pooled, weights = call(module, width, hidden, valid)
    queries = None if width is None else torch.linspace(-1, 1, 3 * width, dtype=torch.double).view(3, width)
    for row, length in enumerate(lengths):
        alone, weight = module(
            hidden[row : row + 1, :length], query=None if queries is None else queries[row : row + 1]
        )
        torch.testing.assert_close(pooled[row], alone[0])
        torch.testing.assert_close(weights[row, :length], weight[0])
        assert (weights[row, length:] == 0).all()


def test_additive_scores_follow_the_equations():
    torch.manual_seed(0)
    module = AdditiveAttention(6, size=5, query_features=4).double()
    hidden, query = torch.randn(2, 3, 6, dtype=torch.double), torch.randn(2, 4, dtype=torch.double)
    seen = []
    module.scores.register_forward_hook(lambda m, args, out: seen.append(out))
    pooled, _ = module(hidden, query=query)
    for b in range(2):
        score = torch.stack(
            [
                module.compare.weight[0]
                @ torch.tanh(module.project.weight @ h + module.project_query.weight @ query[b] + module.project.bias)
                for h in hidden[b]
            ]
        )
        torch.testing.assert_close(seen[0][b], score)
        torch.testing.assert_close(pooled[b], sum(w * h for w, h in zip(score.softmax(0), hidden[b], strict=True)))


def test_scaled_dot_agrees_with_torch():
    hidden, query = torch.randn(2, 5, 6), torch.randn(2, 6)
    valid = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]).bool()
    pooled, _ = ScaledDotAttention(6, query_features=6)(hidden, query=query, valid=valid)
    theirs = nn.functional.scaled_dot_product_attention(query[:, None], hidden, hidden, attn_mask=valid[:, None])
    torch.testing.assert_close(pooled, theirs[:, 0])


def test_the_score_point_acts_before_the_softmax(layer):
    module, width = layer
    hidden = torch.randn(2, 4, 6, dtype=torch.double)
    _, before = call(module, width, hidden)
    shift = torch.tensor([[0.0, 2.0, 0.0, 0.0], [1.0, 0.0, 0.0, -3.0]], dtype=torch.double)
    handle = module.scores.register_forward_hook(lambda m, args, out: out + shift)
    _, after = call(module, width, hidden)
    handle.remove()
    odds = before * shift.exp()
    torch.testing.assert_close(after, odds / odds.sum(-1, keepdim=True))


def test_an_all_padding_row_has_no_weight_no_value_and_no_gradient(layer):
    module, width = layer
    hidden = torch.randn(2, 4, 6, dtype=torch.double, requires_grad=True)
    valid = torch.tensor([[True] * 4, [False] * 4])
    pooled, weights = call(module, width, hidden, valid)
    assert (weights[1] == 0).all()
    assert (pooled[1] == 0).all()
    pooled.square().sum().backward()
    assert torch.isfinite(hidden.grad).all()
    assert (hidden.grad[1] == 0).all()
    assert all(torch.isfinite(p.grad).all() for p in module.parameters() if p.grad is not None)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=8),
    st.integers(0, 2**8 - 1),
)
def test_masked_softmax_is_the_softmax_of_the_valid_part(values, bits):
    scores = torch.tensor(values, dtype=torch.double)
    valid = torch.tensor([bool(bits >> k & 1) for k in range(len(values))])
    weights = masked_softmax(scores, valid)
    assert (weights[~valid] == 0).all()
    if valid.any():
        torch.testing.assert_close(weights[valid], scores[valid].softmax(0))
        assert math.isclose(weights.sum(), 1.0)


def test_gradients_of_first_and_second_order(layer):
    module, width = layer
    hidden = torch.randn(2, 3, 6, dtype=torch.double, requires_grad=True)
    valid = torch.tensor([[1, 1, 1], [1, 1, 0]]).bool()
    assert torch.autograd.gradcheck(lambda h: call(module, width, h, valid)[0], hidden)
    assert torch.autograd.gradgradcheck(lambda h: call(module, width, h, valid)[0], hidden)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"query": torch.zeros(2, 4)}, "query is given"),
        ({"valid": torch.ones(2, 4)}, "must be a bool tensor of shape"),
        ({"valid": torch.ones(2, 4).bool()}, r"shape \(2, 3\)"),
    ],
)
def test_errors_name_the_argument(arguments, message):
    with pytest.raises(ValueError, match=message):
        AdditiveAttention(6)(torch.zeros(2, 3, 6), **arguments)


def test_a_pair_layer_asks_for_its_query():
    with pytest.raises(ValueError, match="query is missing"):
        ScaledDotAttention(6, query_features=6)(torch.zeros(2, 3, 6))
