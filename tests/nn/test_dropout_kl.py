"""KL terms against Monte Carlo and numerical integration, and the search for consuming weights."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import sparring as sp
from sparring.nn import (
    BernoulliDropout,
    ConcreteDropout,
    GaussianDropout,
    bernoulli_kl,
    column_norms,
    dropout_kl,
    find_next_layers,
    gaussian_kl,
)
from sparring.nn.dropout.kl import GAUSSIAN_CUBIC, concrete_kl


@pytest.mark.parametrize("rescale", [False, True])
@pytest.mark.parametrize("keep", [0.15, 0.5, 0.9])
def test_bernoulli_kl_against_monte_carlo(keep: float, rescale: bool) -> None:
    """q is two narrow Gaussians, at W with weight keep and at 0; the constant of the narrow width is subtracted."""
    torch.manual_seed(0)
    scale, width = 0.8, 0.01
    mean = torch.tensor([0.7, -0.4, 0.5], dtype=torch.float64) / (keep if rescale else 1)
    n, d = 200_000, 3
    z = torch.rand(n, 1, dtype=torch.float64) < keep
    w = z * mean + width * torch.randn(n, d, dtype=torch.float64)

    def log_normal(x: Tensor, deviation: float) -> Tensor:
        return -0.5 * (x / deviation).square().sum(1) - d * math.log(deviation * math.sqrt(2 * math.pi))

    log_q = torch.logaddexp(math.log(keep) + log_normal(w - mean, width), math.log(1 - keep) + log_normal(w, width))
    samples = log_q - log_normal(w, scale)
    constant = d * (0.5 * width**2 / scale**2 - 0.5 - math.log(width / scale))
    norms = torch.tensor([0.7**2 + 0.4**2 + 0.5**2], dtype=torch.float64)
    formula = float(bernoulli_kl(torch.tensor([keep], dtype=torch.float64), norms, scale, rescale)) + constant
    error = float(samples.std()) / math.sqrt(n)
    assert abs(float(samples.mean()) - formula) < 4.5 * error
    drop_form = float(bernoulli_kl(torch.tensor([1 - keep], dtype=torch.float64), norms, scale)) + constant
    if keep != 0.5 and not rescale:
        assert abs(float(samples.mean()) - drop_form) > 20 * error  # the rate of the formula is *keep*, not drop


def exact_mean_log(a: float) -> float:
    """E log|1 + sqrt(a) x| for a standard normal x, by quadrature on both sides of the singularity."""
    integrate = pytest.importorskip("scipy.integrate")
    s = math.sqrt(a)

    def f(x: float) -> float:
        return math.log(abs(1 + s * x)) * math.exp(-x * x / 2) / math.sqrt(2 * math.pi)

    edges = [-12.0, -1 / s, 12.0] if 1 / s < 12 else [-12.0, 12.0]
    return sum(integrate.quad(f, low, high, limit=400)[0] for low, high in itertools.pairwise(edges))


def test_gaussian_cubic_is_the_least_squares_fit_over_log_variance() -> None:
    a = np.exp(np.linspace(-3, 0, 120))
    target = -np.array([exact_mean_log(v) for v in a])
    fit, *_ = np.linalg.lstsq(np.stack([np.ones_like(a), a, a**2, a**3], 1), target, rcond=None)
    assert fit[1:].tolist() == pytest.approx(list(GAUSSIAN_CUBIC), rel=0.01)


@pytest.mark.parametrize(("lowest", "worst"), [(0.1, 0.0043), (0.05, 0.0067), (0.005, 0.0186)])
def test_gaussian_kl_error_is_as_documented(lowest: float, worst: float) -> None:
    a = np.linspace(lowest, 1, 60)
    exact = np.array([exact_mean_log(v) - 0.5 * math.log(v) for v in a])  # KL up to a constant
    gap = gaussian_kl(torch.tensor(a)).numpy() - exact
    assert (gap.max() - gap.min()) / 2 <= worst


@pytest.mark.parametrize("make", [
    BernoulliDropout, lambda: BernoulliDropout(rescale=True), ConcreteDropout, lambda: GaussianDropout(learn=True)
])  # fmt: skip
@pytest.mark.parametrize("logit", [-17.0, 17.0, 30.0, -30.0])
def test_the_kl_has_a_gradient_where_a_rate_rounds_to_its_end(make: Any, logit: float) -> None:
    """Against float64, where the same logits are far from 0 and 1."""
    single, double = make(), make().double()
    found = []
    for layer in (single, double):
        (parameter,) = layer.parameters()
        with torch.no_grad():
            parameter.fill_(logit)
        kl = dropout_kl(layer, torch.full((3,), 0.7, dtype=parameter.dtype), prior_scale=1.0)
        found.append((kl.detach().double(), torch.autograd.grad(kl, parameter)[0].double()))
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


def test_gaussian_kl_falls_with_the_noise() -> None:
    values = gaussian_kl(torch.linspace(0.01, 1, 200, dtype=torch.float64))
    assert bool((values.diff() < 0).all())


def test_concrete_regulariser_is_the_rescaled_bernoulli_kl() -> None:
    keep, norms = torch.tensor([0.3, 0.8]), torch.tensor([1.0, 2.0])
    expected = bernoulli_kl(keep, norms, prior_scale=0.7, rescale=True)
    torch.testing.assert_close(concrete_kl(1 - keep, norms, 0.5 / 0.7**2, 1.0), expected)


def test_one_rate_for_a_layer_counts_every_units_entropy() -> None:
    norms = torch.tensor([1.0, 2.0, 3.0])
    for one, three in (
        (BernoulliDropout(1, keep=0.7), BernoulliDropout(3, keep=0.7)),
        (ConcreteDropout(1, p=0.3), ConcreteDropout(3, p=0.3)),
        (GaussianDropout(1, p=0.3), GaussianDropout(3, p=0.3)),
    ):
        torch.testing.assert_close(dropout_kl(one, norms, 1.0), dropout_kl(three, norms, 1.0))


def norms_by_gradient(layer: nn.Module, shape: tuple[int, ...], units: int) -> Tensor:
    """Oracle: run the layer on one unit at a time and add up the squares of what each weight passes on."""
    weights = [p for name, p in layer.named_parameters() if "bias" not in name and "_hh" not in name]
    total = torch.zeros(units)
    for k in range(units):
        x = torch.zeros(shape)
        x[:, k] = 1.0
        outputs = layer(x)
        outputs = outputs[0] if isinstance(outputs, tuple) else outputs
        gradients = torch.autograd.grad(outputs.sum(), weights)
        total[k] = sum(float((w.detach().square() * (g != 0)).sum()) for w, g in zip(weights, gradients))
    return total


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Linear(4, 3), (1, 4)),
        (nn.Conv2d(4, 6, 3, bias=False), (1, 4, 3, 3)),
        (nn.Conv2d(4, 6, 3, groups=2), (1, 4, 3, 3)),
        (nn.ConvTranspose2d(4, 6, 3), (1, 4, 3, 3)),
        (nn.Conv1d(4, 6, 2), (1, 4, 2)),
    ],
    ids=["linear", "conv", "grouped", "transposed", "conv1d"],
)
def test_column_norms_are_the_weights_a_unit_meets(layer: nn.Module, shape: tuple[int, ...]) -> None:
    torch.testing.assert_close(column_norms(layer, 4).detach(), norms_by_gradient(layer, shape, 4))


def test_column_norms_of_recurrent_layers_add_both_directions() -> None:
    layer = nn.LSTM(3, 5, num_layers=2, bidirectional=True)
    expected = layer.weight_ih_l0.square().sum(0) + layer.weight_ih_l0_reverse.square().sum(0)
    torch.testing.assert_close(column_norms(layer, 3), expected)


class Functional(nn.Module):
    """Dropout whose consumers only the graph tells: two heads after a functional activation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop = nn.Linear(3, 4), BernoulliDropout(4)
        self.mean, self.spread, self.last = nn.Linear(4, 2), nn.Linear(4, 2), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.drop(torch.relu(self.first(x))))
        return self.last(self.mean(h) + self.spread(h).exp())


def test_consumers_are_found_through_functions_and_forks() -> None:
    model = Functional()
    found = find_next_layers(model, ["drop"], torch.randn(2, 3))
    assert found["drop"].names == ("mean", "spread")
    expected = model.mean.weight.square().sum(0) + model.spread.weight.square().sum(0)
    torch.testing.assert_close(found["drop"].norms(model), expected)
    assert model.training
    assert not model.first._forward_hooks


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("packed", [False, True])
def test_consumers_behind_recurrent_layers_are_not_the_dropouts(kind: type[nn.RNNBase], packed: bool) -> None:
    """What reads the last state meets the recurrent layer's units, not those of the dropout before it."""

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop, self.rnn = BernoulliDropout(3, dim=-1), kind(3, 5, batch_first=True, bidirectional=True)
            self.head = nn.Linear(10, 2)

        def forward(self, x: Tensor) -> Tensor:
            words = self.drop(x)
            if packed:
                words = nn.utils.rnn.pack_padded_sequence(words, torch.tensor([2, 4]), True, enforce_sorted=False)
            last = self.rnn(words)[1]
            last = last[0] if isinstance(last, tuple) else last
            return self.head(torch.cat([last[0], last[1]], 1))

    found = find_next_layers(Reader(), ["drop"], torch.randn(2, 4, 3))
    assert (found["drop"].names, found["drop"].units) == (("rnn",), 3)


def test_flattened_channels_are_grouped() -> None:
    model = nn.Sequential(nn.Conv2d(1, 3, 3), BernoulliDropout(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2))
    found = find_next_layers(model, ["1"], torch.randn(1, 1, 4, 4))
    head = model[4]
    assert isinstance(head, nn.Linear)
    torch.testing.assert_close(found["1"].norms(model), head.weight.square().reshape(2, 3, 4).sum((0, 2)))


def test_units_are_followed_through_concatenations() -> None:
    class Dense(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop, self.fc, self.other = BernoulliDropout(2), nn.Linear(5, 1), nn.Linear(2, 3)

        def forward(self, x: Tensor) -> Tensor:
            kept = self.drop(x)
            return self.fc(torch.cat([x[:, :1], kept.flip(1), x], 1)) + self.other(kept).sum(1, keepdim=True)

    model = Dense()
    found = find_next_layers(model, ["drop"], torch.randn(2, 2))["drop"]
    assert (found.names, found.columns) == (("fc", "other"), ((-1, 1, 0, -1, -1), None))
    squares = model.fc.weight.square()[0]
    torch.testing.assert_close(found.norms(model), squares[[2, 1]] + model.other.weight.square().sum(0))


def test_the_middle_block_of_a_dense_network_is_consumed_by_its_later_layers_and_the_way_up() -> None:
    """The KL of FC-DenseNet: layer i's new channels stand at a known place of every later input."""
    from sparring.lab.models.fc_densenet import FCDenseNet

    net = FCDenseNet(3, first=4, growth=3, down=(1, 1), middle=3, middle_dropout=lambda units: BernoulliDropout(1))
    names = [f"middle.layers.{i}.dropout" for i in range(3)]
    found = find_next_layers(net, names, torch.randn(1, 3, 12, 16))
    channels = 4 + 3 + 3
    for i, name in enumerate(names):
        expected = torch.zeros(3)
        for j in range(i + 1, 3):
            taken = net.middle.layers[j].conv.weight[:, channels + 3 * i : channels + 3 * (i + 1)]
            expected += taken.square().sum((0, 2, 3))
        up = net.grow[0].conv.weight  # a transposed convolution: its inputs come first
        expected += up[3 * i : 3 * (i + 1)].square().sum((1, 2, 3))
        assert found[name].names == (*(f"middle.layers.{j}.conv" for j in range(i + 1, 3)), "grow.0.conv")
        torch.testing.assert_close(found[name].norms(net), expected)


def test_mixed_units_are_refused() -> None:
    normed = nn.Sequential(BernoulliDropout(4), nn.LayerNorm(4), nn.Linear(4, 1))
    with pytest.raises(ValueError, match="mixed"):
        find_next_layers(normed, ["0"], torch.randn(2, 4))

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.fc = BernoulliDropout(3), BernoulliDropout(3), nn.Linear(3, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(self.one(x) + self.two(x))

    with pytest.raises(ValueError, match="mixed"):
        find_next_layers(Residual(), ["one", "two"], torch.randn(2, 3))
    with pytest.raises(ValueError, match="give weights="):
        find_next_layers(nn.Sequential(nn.Linear(2, 2), BernoulliDropout(2)), ["1"])
    with pytest.raises(ValueError, match="consumes 1"):
        find_next_layers(nn.Sequential(nn.Linear(2, 2), BernoulliDropout(2)), ["1"], torch.randn(1, 2))


@pytest.mark.parametrize("make", [BernoulliDropout, ConcreteDropout, GaussianDropout])
def test_the_term_finds_the_weights_and_takes_given_ones(make: type[nn.Module]) -> None:
    torch.manual_seed(0)
    layer = make(4)
    model = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), layer, nn.Linear(4, 2)).eval()
    head = model[3]
    assert isinstance(head, nn.Linear)
    x, y = torch.randn(5, 2), torch.zeros(5, dtype=torch.long)
    found = sp.Objective(model, sp.cross_entropy, sp.DropoutKL(1.0, 20))(x, y)
    given = sp.Objective(model, sp.cross_entropy, sp.DropoutKL(1.0, 20, weights={"2": head.weight}))(x, y)
    plain = sp.cross_entropy(model(x), y).mean()
    kl = dropout_kl(layer, head.weight.square().sum(0), 1.0)
    torch.testing.assert_close(found, plain + kl / 20)
    torch.testing.assert_close(given, found)


def test_bad_settings_are_named() -> None:
    with pytest.raises(ValueError, match="prior_scale=0"):
        sp.DropoutKL(0, 10)
    with pytest.raises(ValueError, match="dataset_size=0"):
        sp.DropoutKL(1.0, 0)
    with pytest.raises(ValueError, match="Dropout has no KL"):
        dropout_kl(nn.Dropout(), torch.ones(2), 1.0)
    with pytest.raises(ValueError, match="no multiple of 3 units"):
        column_norms(nn.Linear(4, 2), 3)
