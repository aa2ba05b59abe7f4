"""Certified margins against sampling, attacks, closed forms and another library."""

import itertools
import math
import subprocess
import sys
from math import inf

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import sparring as sp
from sparring.ensembles import Ensemble, LaplacePriorityDropout
from sparring.lab.models.resnet import ResNet18
from sparring.lab.models.small_cnn import SmallCNN
from sparring.metrics.certified import UnsupportedOperation, certified_radius, certify, output_bounds
from sparring.metrics.certified.backward import lower_bounds
from sparring.metrics.certified.certificate import expected_memory
from sparring.metrics.certified.crown import intervals, per_row
from sparring.metrics.certified.ops import Relu
from sparring.metrics.certified.region import Region
from sparring.metrics.certified.trace import trace

BALLS = {2: sp.L2, inf: sp.Linf}


class Residual(nn.Module):
    """A small residual network with every supported operation, some of it written as functions."""

    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.one = nn.Conv2d(4, 4, 3, padding=1, groups=2)
        self.two = nn.Conv2d(4, 4, 1)
        self.pool = nn.AvgPool2d(2)
        self.drop = nn.Dropout(0.5)
        self.fc = nn.Linear(4, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        out = self.two(self.one(x).relu())
        out += x
        out = self.pool(nn.functional.relu(out)) * 0.5
        out = torch.flatten(nn.functional.adaptive_avg_pool2d(out, 1), 1)
        return self.fc(self.drop(out))


def residual(seed: int) -> Residual:
    torch.manual_seed(seed)
    net = Residual().double()
    net.norm.running_mean.normal_()
    net.norm.running_var.uniform_(0.5, 2)
    return net.eval()


def mlp(seed: int, widths: tuple[int, ...] = (6, 10, 8, 4)) -> nn.Sequential:
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1]).double()


def margins(logits: Tensor, targets: Tensor) -> Tensor:
    """(B, C-1) true logit minus each other one, in class order; written with a loop on purpose."""
    rows = []
    for row, target in zip(logits, targets.tolist()):
        rows.append(torch.stack([row[target] - row[j] for j in range(len(row)) if j != target]))
    return torch.stack(rows)


def sampled(x: Tensor, epsilon: float, norm: float, count: int) -> Tensor:
    """(count, *x.shape) points of the ball, half of them on its border."""
    noise = torch.randn(count, *x.shape, dtype=x.dtype)
    if norm == inf:
        noise = noise.sign() if count % 2 else torch.rand_like(noise) * 2 - 1
    else:
        noise = noise / noise.flatten(2).norm(dim=2).reshape(count, -1, *[1] * (x.dim() - 1))
    noise[::2] *= torch.rand(len(noise[::2]), *[1] * x.dim(), dtype=x.dtype)
    return x + epsilon * noise


def descended(net: nn.Module, x: Tensor, targets: Tensor, epsilon: float) -> Tensor:
    """Smallest margin a sign descent finds in the L-infinity ball, (B,)."""
    best = margins(net(x), targets).amin(1).detach()
    point = x.clone()
    for _ in range(40):
        point.requires_grad_()
        worst = margins(net(point), targets).amin(1)
        best = torch.minimum(best, worst.detach())
        (grad,) = torch.autograd.grad(worst.sum(), point)
        point = (point.detach() - epsilon / 8 * grad.sign()).clamp(x - epsilon, x + epsilon)
    return best


@pytest.mark.parametrize("norm", [2, inf])
@pytest.mark.parametrize("method", ["crown", "crown-ibp", "ibp"])
@given(seed=st.integers(0, 10_000), epsilon=st.floats(0.0, 0.5))
@settings(max_examples=8, deadline=None)
def test_no_sampled_point_has_a_margin_below_the_bound(norm: float, method: str, seed: int, epsilon: float) -> None:
    net = mlp(seed)
    x, targets = torch.rand(3, 6).double(), torch.tensor([0, 3, 1])
    bound = certify(net, x, targets, BALLS[norm](epsilon), method=method).margins
    for point in sampled(x, epsilon, norm, 200):
        assert (margins(net(point), targets) >= bound - 1e-9).all()


@given(seed=st.integers(0, 10_000), epsilon=st.floats(0.001, 0.3))
@settings(max_examples=8, deadline=None)
def test_no_attack_on_a_residual_network_goes_below_the_bound(seed: int, epsilon: float) -> None:
    net = residual(seed)
    x, targets = torch.rand(2, 2, 8, 8).double(), torch.tensor([2, 0])
    bound = certify(net, x, targets, sp.Linf(epsilon))
    assert (descended(net, x, targets, epsilon) >= bound.lower - 1e-9).all()
    for point in sampled(x, epsilon, inf, 50):
        assert (margins(net(point), targets) >= bound.margins - 1e-9).all()


@given(seed=st.integers(0, 10_000), epsilon=st.floats(0.0, 0.3))
@settings(max_examples=10, deadline=None)
def test_crown_is_at_least_as_tight_as_the_cheaper_bounds(seed: int, epsilon: float) -> None:
    net = residual(seed)
    x, targets = torch.rand(2, 2, 8, 8).double(), torch.tensor([2, 0])
    tight, cheap, loose = (
        certify(net, x, targets, sp.Linf(epsilon), method=m).margins for m in ("crown", "crown-ibp", "ibp")
    )
    assert (cheap >= loose - 1e-12).all()
    assert (tight >= loose - 1e-12).all()


@pytest.mark.parametrize("norm", [2, inf])
def test_exact_on_a_linear_network(norm: float) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 3, 2), nn.Flatten(), nn.Linear(27, 5)).double()
    x, targets = torch.rand(4, 1, 4, 4).double(), torch.tensor([4, 0, 2, 1])
    jacobian = torch.stack([torch.autograd.functional.jacobian(net, e[None])[0, :, 0].flatten(1) for e in x])
    dual = {2: 2, inf: 1}[norm]
    slopes = torch.stack([margins(j.T, targets[i].expand(16)).T for i, j in enumerate(jacobian)])
    exact = margins(net(x), targets) - 0.3 * slopes.norm(p=dual, dim=2)
    torch.testing.assert_close(certify(net, x, targets, BALLS[norm](0.3)).margins, exact)


def test_exact_when_every_relu_keeps_its_sign() -> None:
    net = mlp(1)
    x, targets = torch.rand(3, 6).double(), torch.tensor([0, 3, 1])
    bound = certify(net, x, targets, sp.Linf(1e-7)).margins
    jacobian = torch.autograd.functional.jacobian(lambda v: margins(net(v), targets).sum(0), x).permute(1, 0, 2)
    torch.testing.assert_close(bound, margins(net(x), targets) - 1e-7 * jacobian.abs().sum(2), rtol=0, atol=1e-13)


def test_one_hidden_unit_against_the_relaxation_drawn_by_hand() -> None:
    net = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 2))
    with torch.no_grad():
        for parameter, value in zip(net.parameters(), ([[1.0]], [0.0], [[-1.0], [0.0]], [0.0, 0.0])):
            parameter.copy_(torch.tensor(value))
    # margin = -relu(x) on [-1, 3]; the line above relu is 0.75 (x + 1), so the bound at x = 3 is the true -3.
    assert certify(net, torch.tensor([[1.0]]), torch.tensor([0]), sp.Linf(2.0)).margins.item() == pytest.approx(-3.0)
    lower, upper = output_bounds(net, torch.tensor([[1.0]]), sp.Linf(2.0))
    # the line below is the identity (upper 3 > 1), so -relu(x) <= -x <= 1; the interval's 0 is better and is taken.
    assert lower[0, 0].item() == pytest.approx(-3.0)
    assert upper[0, 0].item() == pytest.approx(0.0)


def test_the_ensemble_certificate_is_about_the_mean_logit() -> None:
    members = [residual(seed) for seed in range(3)]
    x, targets = torch.rand(2, 2, 8, 8).double(), torch.tensor([2, 0])
    bound = certify(members, x, targets, sp.Linf(0.05))

    class Mean(nn.Module):
        def forward(self, v: Tensor) -> Tensor:
            return torch.stack([m(v) for m in members]).mean(0)

    assert (descended(Mean(), x, targets, 0.05) >= bound.lower).all()
    torch.testing.assert_close(certify(members, x, targets, sp.Linf(0.0)).margins, margins(Mean()(x), targets))
    apart = torch.stack([certify([m], x, targets, sp.Linf(0.05)).margins for m in members]).mean(0)
    assert (bound.margins >= apart - 1e-12).all()  # bounding together never loses against bounding one by one


@pytest.mark.parametrize("network", ["resnet", "cnn"])
def test_ensembles_of_our_own_networks(network: str) -> None:
    torch.manual_seed(0)
    members = [ResNet18(width=2, channels=1) if network == "resnet" else SmallCNN(size=8) for _ in range(2)]
    ensemble = Ensemble(members, head="fc").double().eval()
    x = torch.rand(2, 1, 8, 8).double()
    targets = ensemble(x).members.mean(1).argmax(1)
    exact = margins(ensemble(x).members.mean(1), targets).detach()
    torch.testing.assert_close(certify(ensemble, x, targets, sp.Linf(0.0)).margins, exact)
    bound = certify(ensemble, x, targets, sp.Linf(0.002))
    for point in sampled(x, 0.002, inf, 30):
        assert (margins(ensemble(point).members.mean(1), targets) >= bound.margins - 1e-9).all()
    assert (bound.margins <= exact).all()


def test_an_ensemble_that_drops_features_is_refused() -> None:
    ensemble = Ensemble([mlp(0), mlp(1)], head="4", dropout=LaplacePriorityDropout())
    x, targets = torch.rand(2, 6).double(), torch.tensor([0, 1])
    assert certify(ensemble.eval(), x, targets, sp.Linf(0.1)).margins.shape == (2, 3)
    with pytest.raises(UnsupportedOperation, match=r"dropout drops units; call model\.eval"):
        certify(ensemble.train(), x, targets, sp.Linf(0.1))


def test_memory_changes_nothing() -> None:
    net = residual(3)
    x, targets = torch.rand(5, 2, 8, 8).double(), torch.tensor([2, 0, 1, 3, 3])
    whole = certify(net, x, targets, sp.Linf(0.1)).margins
    graph = trace(net, x)
    row = expected_memory(graph, x.dtype, 2**20) - 2**20 + per_row(graph, x.dtype)
    for rows in (1, 7):
        found = certify(net, x, targets, sp.Linf(0.1), memory=row + (rows - 1) * per_row(graph, x.dtype)).margins
        torch.testing.assert_close(found, whole, rtol=0, atol=1e-12)
    with pytest.warns(UserWarning, match=r"take 0.0 MiB, more than memory=1 .*raise memory="):
        found = certify(net, x, targets, sp.Linf(0.1), memory=1).margins
    torch.testing.assert_close(found, whole, rtol=0, atol=1e-12)


MEASURE = """
import resource, torch, sparring as sp
from sparring.lab.models.resnet import ResNet18
from sparring.metrics.certified import certify
from sparring.metrics.certified.certificate import MEMORY, expected_memory
from sparring.metrics.certified.trace import trace
torch.set_num_threads(1)
torch.manual_seed(0)
net = ResNet18(width={width}).eval()
x = torch.rand({images}, 3, 32, 32)
y = net(x).argmax(1)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = certify(net, x, y, sp.Linf({radius}))
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(before * 1024, after * 1024, expected_memory(trace(net, x), x.dtype, MEMORY), len(found.margins))
"""


def measured(width: int, images: int, radius: float) -> tuple[int, int, int]:
    """(bytes before, at the peak, expected), in a process of its own."""
    script = MEASURE.format(width=width, images=images, radius=radius)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    before, after, expected, count = map(int, done.stdout.split())
    assert count == images
    return before, after, expected


@pytest.mark.long
def test_ten_images_of_a_resnet_18_of_width_16_fit_in_four_gib() -> None:
    before, after, expected = measured(width=16, images=10, radius=2e-5)
    assert after < 4 * 2**30
    assert after - before < 1.5 * expected, "what was expected before the start holds"


@pytest.mark.parametrize("norm", [2, inf])
def test_a_box_tightens_the_bound_and_keeps_it_sound(norm: float) -> None:
    net = mlp(5)
    x, targets = torch.rand(3, 6).double(), torch.tensor([0, 3, 1])
    free, boxed = BALLS[norm](0.9), BALLS[norm](0.9, box=(0, 1))
    loose, tighter = (certify(net, x, targets, ball, method="ibp").margins for ball in (free, boxed))
    assert (tighter >= loose - 1e-12).all()
    assert (tighter > loose + 1e-6).any()
    cut = certify(net, x, targets, boxed).margins
    for point in sampled(x, 0.9, norm, 200):  # clamping brings a point nearer to its centre
        assert (margins(net(point.clamp(0, 1)), targets) >= cut - 1e-9).all()


def test_certified_radius_is_certified_and_tight() -> None:
    net = mlp(7)
    x = torch.rand(6, 6).double()
    targets = net(x).argmax(1)
    targets[0] = (targets[0] + 1) % 4
    radius = certified_radius(net, x, targets, sp.Linf(1.0), halvings=12)
    assert radius[0] == 0
    assert (radius[1:] > 0).all()
    for i in range(1, 6):
        one, largest = (x[i : i + 1], targets[i : i + 1]), radius[i].item()
        assert certify(net, *one, sp.Linf(largest)).certified.all()
        assert not certify(net, *one, sp.Linf(largest + 0.01)).certified.any()


def crown_alone(net: nn.Module, x: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """CROWN for every node in turn, without the intersection with intervals that `certify` adds."""
    graph, region, bounds = trace(net, x), Region(x, sp.Linf(epsilon)), {}
    wanted = [node.parents[0] for node in graph if isinstance(node.op, Relu)] + [len(graph) - 1]
    for position in wanted:
        size = math.prod(graph[position].shape)
        unit, who = torch.eye(size, dtype=x.dtype).repeat(len(x), 1), torch.arange(len(x)).repeat_interleave(size)
        sides = []
        for sign in (1, -1):
            rows = (sign * unit).reshape(-1, *graph[position].shape)
            found = sign * lower_bounds(graph, region, bounds, position, rows, who)
            sides.append(found.reshape(len(x), *graph[position].shape))
        bounds[position] = (sides[0], sides[1])
    return bounds[wanted[-1]]


def dense(layer: nn.Module, shape: tuple[int, ...]) -> nn.Linear:
    """The matrix of any affine layer, read off column by column."""
    size = math.prod(shape)
    shift = layer(torch.zeros(1, *shape, dtype=torch.float64)).flatten()
    columns = layer(torch.eye(size, dtype=torch.float64).reshape(size, *shape)).flatten(1) - shift
    flat = nn.Linear(size, len(shift)).double()
    flat.weight, flat.bias = nn.Parameter(columns.T), nn.Parameter(shift)
    return flat


@pytest.mark.parametrize("seed", range(4))
def test_agrees_with_bound_propagation(seed: int) -> None:
    """A library by other people, on networks both understand: dense ones, and a convolution written as a matrix."""
    peer = pytest.importorskip("bound_propagation", reason="bound-propagation is not installed")
    with torch.no_grad():
        front = nn.Sequential(nn.Conv2d(2, 3, 3, stride=2, padding=1), nn.BatchNorm2d(3)).double().eval()
        back = nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(12, 5)).double()
        convolution = nn.Sequential(front, nn.ReLU(), back)
        written_out = nn.Sequential(dense(front, (2, 8, 8)), nn.ReLU(), dense(back, (3, 4, 4)))
        for ours, theirs, x in (
            (mlp(seed), mlp(seed), torch.rand(4, 6).double()),
            (convolution, written_out, torch.rand(4, 2, 8, 8).double()),
        ):
            box = peer.HyperRectangle.from_eps(x.flatten(1), 0.2)
            expected = peer.BoundModelFactory(adaptive_relu=True).build(theirs).crown(box).concretize()
            lower, upper = crown_alone(ours, x, 0.2)
            torch.testing.assert_close(lower, expected.lower)
            torch.testing.assert_close(upper, expected.upper)
            lower, upper = output_bounds(ours, x, sp.Linf(0.2))
            assert (lower >= expected.lower - 1e-9).all()
            assert (upper <= expected.upper + 1e-9).all()
            interval = peer.BoundModelFactory().build(theirs).ibp(box)
            ibp = intervals(trace(ours, x), Region(x, sp.Linf(0.2)))[len(trace(ours, x)) - 1]
            torch.testing.assert_close(ibp[0], interval.lower)
            torch.testing.assert_close(ibp[1], interval.upper)


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.fc(x)
        out = self.relu(hidden)
        return out + hidden  # hidden was overwritten: this is 2 relu(fc(x))


def test_in_place_operations_are_seen_by_later_readers() -> None:
    torch.manual_seed(0)
    net = InPlace()
    x, targets = torch.randn(5, 4), torch.tensor([0, 1, 2, 3, 0])
    torch.testing.assert_close(certify(net, x, targets, sp.Linf(0.0)).margins, margins(net(x), targets).detach())


class Aside(nn.Module):
    """Goes on computing after its answer, for a note of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.other = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out = self.fc(x)
        self.note = self.other(x)
        return out


def test_the_certificate_is_about_what_the_model_returns_not_what_it_computes_last() -> None:
    torch.manual_seed(0)
    net = Aside()
    x, targets = torch.randn(5, 4), torch.tensor([0, 1, 2, 1, 0])
    torch.testing.assert_close(certify(net, x, targets, sp.Linf(0.0)).margins, margins(net(x), targets).detach())
    torch.testing.assert_close(output_bounds(net, x, sp.Linf(0.0))[0], net(x).detach())


def test_a_hook_on_a_layer_is_refused() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    for hooked in (nn.Module.register_forward_hook, nn.Module.register_forward_pre_hook):
        handle = hooked(net[2], lambda module, *seen: -seen[-1])
        with pytest.raises(UnsupportedOperation, match=r"2 has a forward hook"):
            certify(net, torch.rand(2, 4), torch.tensor([0, 1]), sp.Linf(0.1))
        handle.remove()
    certify(net, torch.rand(2, 4), torch.tensor([0, 1]), sp.Linf(0.1))


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_weights_made_of_trained_parts_are_those_of_now() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 4)), nn.ReLU(), nn.utils.spectral_norm(nn.Linear(4, 3)))
    x, targets = torch.randn(5, 4), torch.tensor([0, 1, 2, 1, 0])
    net.eval()(x)
    with torch.no_grad():  # trained on, and not run since
        net[0].weight_g.mul_(-2)
        net[2].weight_orig.mul_(torch.tensor([[1.0], [-2.0], [3.0]]))
    found = certify(net, x, targets, sp.Linf(0.0)).margins
    torch.testing.assert_close(found, margins(net(x), targets).detach())


class Sequence(nn.Module):
    """A linear layer on every position of a sequence: its outputs come last, batch norm's channels first."""

    def __init__(self, positions: int, features: int, factor: float = 1.0) -> None:
        super().__init__()
        self.embed, self.norm, self.factor = nn.Linear(4, features), nn.BatchNorm1d(positions), factor
        self.fc = nn.Linear(positions * features, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc((self.norm(self.embed(x) * self.factor)).relu().flatten(1))


@pytest.mark.parametrize("positions", [2, 5])
@pytest.mark.parametrize("factor", [1.0, -0.5])
def test_batch_norm_after_a_linear_layer_on_sequences(positions: int, factor: float) -> None:
    torch.manual_seed(0)
    net = Sequence(positions, 5, factor).double().eval()
    net.norm.running_mean.normal_()
    net.norm.running_var.uniform_(0.2, 3)
    nn.init.uniform_(net.norm.weight, -2, 2)
    x, targets = torch.randn(3, positions, 4).double(), torch.tensor([0, 1, 2])
    torch.testing.assert_close(certify(net, x, targets, sp.Linf(0.0)).margins, margins(net(x), targets).detach())
    bound = certify(net, x, targets, sp.Linf(0.1)).margins
    for points in sampled(x, 0.1, inf, 301):
        assert (bound <= margins(net(points), targets) + 1e-9).all()


@pytest.mark.parametrize(("kernel", "padding"), [(1, 1), (3, 3), ((3, 1), (1, 2))])
def test_padding_wider_than_the_kernel(kernel: int | tuple[int, int], padding: int | tuple[int, int]) -> None:
    torch.manual_seed(0)
    front = nn.Conv2d(2, 3, kernel, padding=padding)
    x, targets = torch.rand(2, 2, 5, 4), torch.tensor([0, 1])
    net = nn.Sequential(front, nn.ReLU(), nn.Flatten(), nn.Linear(front(x)[0].numel(), 4))
    torch.testing.assert_close(certify(net, x, targets, sp.Linf(0.0)).margins, margins(net(x), targets).detach())
    assert (certify(net, x, targets, sp.Linf(0.1)).lower <= descended(net, x, targets, 0.1) + 1e-5).all()


@pytest.mark.parametrize(
    ("net", "said"),
    [
        (nn.Sequential(nn.Linear(4, 4), nn.Tanh()), "1 is a Tanh"),
        (nn.Sequential(nn.Linear(4, 4), nn.Softmax(1)), "Softmax"),
        (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).train(), "call model.eval"),
        (nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).train(), "at random; call model.eval"),
    ],
)
def test_what_cannot_be_bounded_is_named(net: nn.Module, said: str) -> None:
    with pytest.raises(UnsupportedOperation, match=said):
        certify(net, torch.rand(2, 4), torch.tensor([0, 1]), sp.Linf(0.1))


class Branch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


class Concatenate(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, x], 1)


class Square(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * x


class Permute(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, [1, 0, 2, 3]]


@pytest.mark.parametrize(
    ("net", "said"),
    [(Branch(), "depends on values"), (Concatenate(), r"cat\(\)"), (Square(), r"mul\(\)"), (Permute(), "getitem")],
)
def test_functions_that_cannot_be_bounded_are_named(net: nn.Module, said: str) -> None:
    with pytest.raises(UnsupportedOperation, match=said):
        certify(net, torch.rand(2, 4), torch.tensor([0, 1]), sp.Linf(0.1))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32])
def test_targets_as_images_store_them(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    net, x, targets = nn.Linear(4, 3), torch.rand(3, 4), torch.tensor([1, 2, 1])  # as many examples as classes
    expected = certify(net, x, targets, sp.Linf(0.1)).margins
    assert torch.equal(certify(net, x, targets.to(dtype), sp.Linf(0.1)).margins, expected)


def test_bad_arguments() -> None:
    net, x = mlp(0), torch.rand(2, 6).double()
    with pytest.raises(ValueError, match="targets run from 0 to 9"):
        certify(net, x, torch.tensor([0, 9]), sp.Linf(0.1))
    for targets in (torch.tensor([0]), torch.tensor([0, 1, 1]), torch.tensor([[0], [1]]), torch.tensor([0.0, 1.0])):
        with pytest.raises(ValueError, match="one class number for each of 2 examples"):
            certify(net, x, targets, sp.Linf(0.1))
    with pytest.raises(ValueError, match="method is 'magic'"):
        certify(net, x, torch.tensor([0, 1]), sp.Linf(0.1), method="magic")
    with pytest.raises(
        TypeError, match=r"certify\(ball=0.1\): a number does not say which norm; write ball=sp.L2\(0.1\)"
    ):
        certify(net, x, torch.tensor([0, 1]), 0.1)
    with pytest.raises(ValueError, match="certificates for L2 and Linf balls of whole examples"):
        certify(net, x, torch.tensor([0, 1]), sp.L2(0.1, rows=True))
    with pytest.raises(ValueError, match=r"outside box=\(0, 0.01\)"):
        certify(net, x, torch.tensor([0, 1]), sp.Linf(0.1, box=(0, 0.01)))
    with pytest.raises(ValueError, match=r"shape \(2, 1\).*two at least"):
        certify(nn.Linear(6, 1).double(), x, torch.tensor([0, 0]), sp.Linf(0.1))
    with pytest.raises(ValueError, match="empty sequence"):
        certify([], x, torch.tensor([0, 1]), sp.Linf(0.1))
    with pytest.raises(ValueError, match=r"\(B, classes\)"):
        certify(nn.Sequential(nn.Conv2d(2, 2, 1)), torch.rand(2, 2, 3, 3), torch.tensor([0, 1]), sp.Linf(0.1))


def test_progress_runs_from_start_to_end() -> None:
    seen: list[float] = []
    certify(
        mlp(0),
        torch.rand(2, 6).double(),
        torch.tensor([0, 1]),
        sp.Linf(0.1),
        progress=lambda _, share: seen.append(share),
    )
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
