"""The layers as drop-in replacements of torch's, and their masks against a cell loop."""

import copy
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import sparring.nn as snn
from sparring.nn.recurrent.forward import masked_forward
from sparring.nn.recurrent.projection import shared_projections

LAYERS = [
    (snn.LSTM, nn.LSTM, {}),
    (snn.GRU, nn.GRU, {}),
    (snn.RNN, nn.RNN, {}),
    (snn.RNN, nn.RNN, {"nonlinearity": "relu"}),
]
CELLS = {"LSTM": nn.LSTMCell, "GRU": nn.GRUCell, "RNN_TANH": nn.RNNCell, "RNN_RELU": nn.RNNCell}


def flat(result: Any) -> list[Tensor]:
    output, state = result
    output = output.data if isinstance(output, PackedSequence) else output
    return [output, *(state if isinstance(state, tuple) else (state,))]


def same(a: Any, b: Any, tolerance: float = 1e-5) -> None:
    for x, y in zip(flat(a), flat(b), strict=True):
        torch.testing.assert_close(x, y, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("ours", "theirs", "extra"), LAYERS)
@pytest.mark.parametrize(
    "options", [{}, {"num_layers": 2, "bidirectional": True}, {"bias": False}, {"batch_first": True}]
)
def test_same_state_dict_and_a_mask_of_ones_changes_nothing(ours: Any, theirs: Any, extra: dict, options: dict) -> None:
    reference = theirs(3, 5, **options, **extra)
    layer = ours(3, 5, **options, **extra)
    assert list(layer.state_dict()) == list(reference.state_dict())
    layer.load_state_dict(reference.state_dict())
    x = torch.randn(4, 4, 3, requires_grad=True)
    plain = x.detach().requires_grad_()
    ones = torch.ones(layer.num_layers * (2 if layer.bidirectional else 1), 4, 5)
    result, expected = layer(x, mask=ones), reference(plain)
    same(result, expected)
    same(layer(x), expected)
    upstream = torch.randn_like(expected[0])
    result[0].backward(upstream)
    expected[0].backward(upstream)
    torch.testing.assert_close(x.grad, plain.grad, rtol=1e-5, atol=1e-5)
    for a, b in zip(layer.parameters(), reference.parameters()):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("ours", "theirs", "extra"), LAYERS)
def test_the_mask_acts_on_the_recurrent_product_alone(ours: Any, theirs: Any, extra: dict) -> None:
    """Against torch's cells: an unmasked cell of h is told apart from one of m * h by the state it keeps."""
    layer = ours(3, 5, **extra)
    cell = CELLS[layer.mode](3, 5, **extra)
    for name, value in cell.named_parameters():
        value.data = getattr(layer, f"{name}_l0").data
    x, mask = torch.randn(6, 4, 3), torch.rand(4, 5) * 2
    h = c = torch.randn(4, 5)
    first = (h[None], c[None]) if layer.mode == "LSTM" else h[None]
    states = []
    for t in range(6):
        if layer.mode == "LSTM":
            h, c = cell(x[t], (h * mask, c))
        elif layer.mode == "GRU":  # the cell would also carry m * h over: add what the mask took from z * h
            update = x[t] @ cell.weight_ih[5:10].T + (h * mask) @ cell.weight_hh[5:10].T
            z = torch.sigmoid(update + cell.bias_ih[5:10] + cell.bias_hh[5:10])
            h = cell(x[t], h * mask) + z * (h - h * mask)
        else:
            h = cell(x[t], h * mask)
        states.append(h)
    output, _ = layer(x, first, mask=mask[None])
    torch.testing.assert_close(output, torch.stack(states), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("ours", "theirs", "extra"), LAYERS)
def test_one_mask_for_the_batch_equals_the_same_mask_per_example(ours: Any, theirs: Any, extra: dict) -> None:
    layer = ours(3, 5, num_layers=2, bidirectional=True, **extra)
    x, mask = torch.randn(6, 4, 3), torch.rand(4, 1, 5, requires_grad=True)
    folded, spread = layer(x, mask=mask), layer(x, mask=mask.expand(4, 4, 5).contiguous())
    same(folded, spread)
    for result in (folded, spread):
        result[0].square().sum().backward()
    layer.zero_grad()
    one = torch.autograd.grad(layer(x, mask=mask)[0].sum(), mask)[0]
    many = torch.autograd.grad(layer(x, mask=mask.expand(4, 4, 5))[0].sum(), mask)[0]
    torch.testing.assert_close(one, many, rtol=1e-5, atol=1e-5)


@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    which=st.integers(0, 3),
    layers=st.integers(1, 2),
    two_ways=st.booleans(),
    first=st.booleans(),
)
def test_packed_sequences_equal_each_sequence_on_its_own(
    lengths: list[int], which: int, layers: int, two_ways: bool, first: bool
) -> None:
    ours, _, extra = LAYERS[which]
    layer = ours(3, 5, num_layers=layers, bidirectional=two_ways, batch_first=True, **extra)
    batch, count = len(lengths), layers * (1 + two_ways)
    x, mask = torch.randn(batch, max(lengths), 3), torch.rand(count, batch, 5)
    state = torch.randn(count, batch, 5)
    start: Any = ((state, state) if layer.mode == "LSTM" else state) if first else None
    packed = pack_padded_sequence(x, torch.tensor(lengths), batch_first=True, enforce_sorted=False)
    output, last = layer(packed, start, mask=mask)
    padded, seen = pad_packed_sequence(output, batch_first=True)
    assert seen.tolist() == lengths
    for b, length in enumerate(lengths):
        begin = (
            None
            if start is None
            else tuple(s[:, b : b + 1] for s in start)
            if layer.mode == "LSTM"
            else state[:, b : b + 1]
        )
        alone, final = layer(x[b : b + 1, :length], begin, mask=mask[:, b : b + 1])
        torch.testing.assert_close(padded[b : b + 1, :length], alone, rtol=1e-5, atol=1e-5)
        for a, c in zip(flat((output, last))[1:], flat((alone, final))[1:]):
            torch.testing.assert_close(a[:, b : b + 1], c, rtol=1e-5, atol=1e-5)
    ones = torch.ones(count, batch, 5)
    same(layer(packed, start, mask=ones), layer(packed, start))


def test_a_sequence_without_a_batch_dimension() -> None:
    layer, x = snn.LSTM(3, 5), torch.randn(6, 3)
    same(layer(x, mask=torch.ones(1, 1, 5)), layer(x))
    state = (torch.randn(1, 5), torch.randn(1, 5))
    same(layer(x, state, mask=torch.ones(1, 1, 5)), layer(x, state))
    mask = torch.tensor([[[0.0, 1.0, 0.0, 2.0, 0.5]]])
    output, (h, c) = layer(x.unsqueeze(1), tuple(part.unsqueeze(1) for part in state), mask=mask)
    same(layer(x, state, mask=mask), (output.squeeze(1), (h.squeeze(1), c.squeeze(1))))
    assert not torch.allclose(layer(x, state, mask=mask)[0], layer(x, state)[0])


def test_masks_may_be_left_out_per_connection() -> None:
    layer, x, mask = snn.LSTM(3, 5, num_layers=2), torch.randn(6, 4, 3), torch.rand(4, 5)
    same(layer(x, mask=[None, mask]), layer(x, mask=torch.stack([torch.ones(4, 5), mask])))


def test_untouched_torch_modules_run_with_their_own_parameters() -> None:
    layer, x = nn.GRU(3, 5, num_layers=2), torch.randn(6, 4, 3)
    before = copy.deepcopy(layer.state_dict())
    same(masked_forward(layer, x, mask=torch.ones(2, 4, 5)), layer(x))
    assert all(torch.equal(before[name], value) for name, value in layer.state_dict().items())


def test_dropout_between_layers_acts_in_training_only() -> None:
    layer, x, ones = snn.LSTM(3, 5, num_layers=2, dropout=0.5), torch.randn(6, 4, 3), torch.ones(2, 4, 5)
    assert not torch.equal(layer(x, mask=ones)[0], layer(x, mask=ones)[0])
    layer.eval()
    same(layer(x, mask=ones), layer(x))


def test_half_precision_and_autocast_compute_in_float32() -> None:
    layer, x, mask = snn.LSTM(3, 5), torch.randn(6, 4, 3), torch.rand(1, 4, 5)
    truth = layer(x, mask=mask)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = layer(x, mask=mask)[0]
        output.sum().backward()
    assert torch.equal(output, truth)
    half = layer.bfloat16()(x.bfloat16(), mask=mask)[0]
    assert half.dtype == torch.bfloat16
    assert (half.float() - truth).abs().max() < 0.02


@pytest.mark.parametrize("how", ["float32", "bfloat16", "parametrised"])
def test_only_weights_that_outlive_a_pass_are_known_by_their_address(how: str) -> None:
    """The widened copies of the two directions' weights took turns at one address, and so did their projections."""
    layer, store = nn.GRU(20, 5, bidirectional=True, bias=False), dict[Any, Any]()
    if how == "parametrised":
        nn.utils.parametrizations.weight_norm(layer, "weight_ih_l0")
        nn.utils.parametrizations.weight_norm(layer, "weight_ih_l0_reverse")
    dtype = torch.bfloat16 if how == "bfloat16" else torch.float32
    with shared_projections(store):
        masked_forward(layer.to(dtype), torch.randn(3, 4, 20, dtype=dtype), mask=torch.ones(2, 4, 5))
    assert len(store) == (2 if how == "float32" else 0)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (torch.ones(4, 5), r"mask must have shape \(1, 4 or 1, 5\).*got \(4, 5\)"),
        (torch.ones(2, 4, 5), r"one per layer and direction; got \(2, 4, 5\)"),
        (torch.ones(1, 3, 5), r"a row per example or one for all; got \(3, 5\)"),
        (torch.ones(1, 4, 6), r"got \(4, 6\)"),
        ([None, None], "got 2 masks"),
    ],
)
def test_a_mask_of_the_wrong_shape_is_refused(mask: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        snn.LSTM(3, 5)(torch.randn(6, 4, 3), mask=mask)


def test_projections_are_refused() -> None:
    with pytest.raises(ValueError, match=r"proj_size=2.*do not support projections"):
        snn.LSTM(3, 5, proj_size=2)
    with pytest.raises(ValueError, match="do not support projections"):
        masked_forward(nn.LSTM(3, 5, proj_size=2), torch.randn(6, 4, 3), mask=torch.ones(1, 4, 5))


def test_errors_of_torch_stay() -> None:
    with pytest.raises(RuntimeError, match=r"input\.size"):
        snn.LSTM(3, 5)(torch.randn(6, 4, 2), mask=torch.ones(1, 4, 5))
    with pytest.raises(ValueError, match="2 or 3 dimensions"):
        snn.LSTM(3, 5)(torch.randn(6), mask=torch.ones(1, 4, 5))


@pytest.mark.parametrize("shape", [(0, 2, 3), (5, 0, 3)])
def test_nothing_to_mask_is_said_plainly(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="empty batch or sequence"):
        masked_forward(nn.LSTM(3, 4), torch.zeros(shape), mask=torch.ones(1, max(1, shape[1]), 4))
