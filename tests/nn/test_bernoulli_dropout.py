"""BernoulliDropout as a layer: rates, shapes, evaluation, and how other tools see it."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from sparring.nn import BernoulliDropout, ConcreteDropout, GaussianDropout, clamp_after_step, keep_rates
from sparring.nn.dropout.rates import clamp_rates, parameter_groups


@settings(deadline=None, max_examples=30)
@given(st.floats(0.02, 0.98), st.booleans(), st.integers(0, 10**6))
def test_masks_have_the_keep_rate_and_the_right_mean(keep: float, rescale: bool, seed: int) -> None:
    torch.manual_seed(seed)
    layer = BernoulliDropout(2, keep=keep, rescale=rescale)
    mask = layer.draw(torch.ones(4000, 2)).detach()
    values = mask.unique()
    expected = torch.tensor([0.0, 1 / keep if rescale else 1.0])
    assert all(bool((v - expected).abs().min() < 1e-4) for v in values)
    share = float((mask != 0).double().mean())
    assert abs(share - keep) < 5 * math.sqrt(keep * (1 - keep) / 8000)


@pytest.mark.parametrize(
    ("shape", "dim", "share", "expected"),
    [
        ((5, 3), 1, True, (5, 3)),
        ((5, 3, 4, 4), 1, True, (5, 3, 1, 1)),
        ((5, 3, 4, 4), 1, False, (5, 3, 4, 4)),
        ((5, 7, 3), -1, True, (5, 1, 3)),
        ((5, 7, 3), 2, False, (5, 7, 3)),
    ],
)
@pytest.mark.parametrize("make", [BernoulliDropout, ConcreteDropout, GaussianDropout])
@pytest.mark.parametrize("features", [1, 3])
def test_mask_shapes(
    shape: tuple[int, ...], dim: int, share: bool, expected: tuple[int, ...], make: type[nn.Module], features: int
) -> None:
    layer = make(features, dim=dim, share=share)
    x = torch.ones(shape)
    assert tuple(layer.draw(x).shape) == expected  # type: ignore[operator]
    with torch.no_grad():
        assert layer(x).shape == x.shape
        assert tuple(layer.eval().draw(x).shape) == expected  # type: ignore[operator]


def test_evaluation_uses_the_mean_of_the_mask() -> None:
    layer = BernoulliDropout(3).eval()
    with torch.no_grad():
        layer.logits.copy_(torch.tensor([-1.0, 0.0, 2.0]))
    x = torch.ones(2, 3)
    assert torch.equal(layer(x), torch.sigmoid(layer.logits).expand(2, 3))
    layer.rescale = True
    assert torch.equal(layer(x), x)


def test_each_unit_has_its_own_rate() -> None:
    torch.manual_seed(0)
    layer = BernoulliDropout(3)
    with torch.no_grad():
        layer.logits.copy_(torch.tensor([-2.0, 0.0, 2.0]))
    share = layer.draw(torch.ones(20_000, 3)).mean(0)
    torch.testing.assert_close(share, layer.keep.detach(), atol=0.02, rtol=0)


def test_one_logit_shared_by_two_layers_is_one_parameter() -> None:
    first = BernoulliDropout(1, keep=0.8)
    model = nn.Sequential(first, nn.Linear(2, 2), BernoulliDropout(logits=first.logits))
    assert sum(p is first.logits for p in model.parameters()) == 1
    assert len(parameter_groups(model, 1e-3)[1]["params"]) == 1


def test_it_is_a_dropout_with_a_live_p() -> None:
    layer = BernoulliDropout(4, keep=0.75)
    assert isinstance(layer, _DropoutNd)
    assert layer.p == pytest.approx(0.25)
    with torch.no_grad():
        layer.logits.zero_()
    assert layer.p == pytest.approx(0.5)
    other = BernoulliDropout(4)
    other.load_state_dict(layer.state_dict())
    assert list(layer.state_dict()) == ["logits"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_mask_takes_the_inputs_precision(dtype: torch.dtype) -> None:
    with torch.no_grad():
        for layer in (BernoulliDropout(2, rescale=True), ConcreteDropout(2), GaussianDropout(2)):
            assert layer(torch.ones(3, 2, dtype=dtype)).dtype == dtype


def test_the_same_seed_gives_the_same_mask() -> None:
    layer, x = BernoulliDropout(8), torch.ones(4, 8)
    torch.manual_seed(3)
    first = layer.draw(x)
    torch.manual_seed(3)
    assert torch.equal(first, layer.draw(x))


@settings(deadline=None, max_examples=30)
@given(st.floats(-12, 12), st.floats(0.01, 0.4), st.floats(0.6, 0.99))
def test_clamped_rates_stay_inside(logit: float, low: float, high: float) -> None:
    model = nn.Sequential(BernoulliDropout(2), ConcreteDropout(2), GaussianDropout(2, learn=True))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(logit)
    clamp_rates(model, low, high)
    for rate in keep_rates(model).values():
        assert bool((rate >= min(low, 0.5) - 1e-5).all())
        assert bool((rate <= high + 1e-5).all())


def test_the_clamp_can_be_taken_off() -> None:
    layer = BernoulliDropout(1)
    optimizer = torch.optim.SGD(parameter_groups(layer, lr=1.0, rates_lr=1000.0))
    handle = clamp_after_step(optimizer, layer, high=0.9)
    for expected in (0.9, 1.0):
        (-layer.keep.sum()).backward()
        optimizer.step()
        assert float(layer.keep.detach()) == pytest.approx(expected, abs=1e-4)
        handle.remove()


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match=r"keep=1\.0"):
        BernoulliDropout(2, keep=1.0)
    with pytest.raises(ValueError, match="features=0"):
        BernoulliDropout(0)
    with pytest.raises(ValueError, match="use dim=-1"):
        BernoulliDropout(3).draw(torch.ones(2, 5, 3))
    with pytest.raises(ValueError, match="no unit axis"):
        BernoulliDropout(3).draw(torch.ones(3))
    with pytest.raises(ValueError, match=r"p=0\.6"):
        GaussianDropout(p=0.6)
    with pytest.raises(ValueError, match="temperature=0"):
        ConcreteDropout(temperature=0)
    with pytest.raises(ValueError, match="low"):
        clamp_rates(BernoulliDropout(2), 0.9, 0.1)
