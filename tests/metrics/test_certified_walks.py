"""How linear functions walk back: one walk for both sides against another library, windows against whole maps."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import sparring as sp
from sparring.metrics.certified.backward import Bounds, both_bounds, lower_bounds
from sparring.metrics.certified.crown import TILE, intervals, refine
from sparring.metrics.certified.ops import Conv2d, Relu
from sparring.metrics.certified.region import Region
from sparring.metrics.certified.trace import Graph, trace


class Branches(nn.Module):
    """Strides, dilation, groups, a padding wider than its kernel and two branches whose windows differ."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, stride=2, padding=1)
        self.wide = nn.Conv2d(4, 4, 3, padding=2, dilation=2, groups=2)
        self.point = nn.Conv2d(4, 4, 1)
        self.down = nn.Conv2d(4, 3, (3, 2), stride=(2, 1), padding=(0, 2))
        self.fc = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        x = (self.wide(x) + self.point(x) * 0.5).relu()
        return self.fc(self.down(x).relu().mean((2, 3)))


def scene(seed: int) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(seed)
    return Branches().double().eval(), torch.rand(2, 2, 17, 13).double()


def before_relus(graph: Graph) -> list[int]:
    return [node.parents[0] for node in graph if isinstance(node.op, Relu)]


@pytest.mark.parametrize("seed", range(2))
def test_a_window_changes_nothing(seed: int) -> None:
    net, x = scene(seed)
    with torch.no_grad():
        graph, region = trace(net, x), Region(x, sp.Linf(0.05))
        bounds = intervals(graph, region)
        for position in before_relus(graph):
            channels, height, width = graph[position].shape
            for top, left in itertools.product(range(0, height, TILE), range(0, width, TILE)):
                window = ((top, min(top + TILE, height)), (left, min(left + TILE, width)))
                inside = torch.randn(5, channels, window[0][1] - top, window[1][1] - left).double()
                rows = torch.zeros(5, channels, height, width).double()
                rows[:, :, top : window[0][1], left : window[1][1]] = inside
                for who in (torch.tensor([0, 1, 0, 1, 1]), torch.ones(5, dtype=torch.long)):
                    given = (graph, region, bounds, position)
                    for whole, part in (
                        (lower_bounds(*given, rows, who), lower_bounds(*given, inside, who, window=window)),
                        (lower_bounds(*given, rows, who, False), lower_bounds(*given, inside, who, False, window)),
                        (both_bounds(*given, rows, who), both_bounds(*given, inside, who, window)),
                    ):
                        torch.testing.assert_close(part, whole, rtol=1e-10, atol=1e-10)


@settings(max_examples=60, deadline=None)
@given(
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.tuples(st.integers(0, 4), st.integers(0, 4)),
    dilation=st.integers(1, 2),
    size=st.tuples(st.integers(5, 9), st.integers(5, 9)),
)
def test_a_convolution_walks_back_as_its_derivative_does(
    kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int], dilation: int, size: tuple[int, int]
) -> None:
    layer = nn.Conv2d(2, 3, kernel, stride, padding, dilation).double()
    x = torch.zeros(1, 2, *size).double().requires_grad_()
    out = layer(x)
    row = torch.randn_like(out)
    (expected,) = torch.autograd.grad(out, x, row)
    op = Conv2d(layer.weight.detach(), None, stride, padding, (dilation, dilation), 1)
    torch.testing.assert_close(op.back(row, (2, *size)), expected)


def walked(net: nn.Module, x: Tensor, radius: float) -> Bounds:
    """`both_bounds` for every node in turn; before a ReLU the better of them and plain intervals, as the other library has it."""
    graph, region = trace(net, x), Region(x, sp.Linf(radius))
    plain, bounds = intervals(graph, region), {}
    for position in (*before_relus(graph), len(graph) - 1):
        size = math.prod(graph[position].shape)
        rows, who = torch.eye(size, dtype=x.dtype).repeat(len(x), 1), torch.arange(len(x)).repeat_interleave(size)
        low, high = (side.reshape(len(x), size) for side in both_bounds(graph, region, bounds, position, rows, who))
        bounds[position] = torch.maximum(low, plain[position][0]), torch.minimum(high, plain[position][1])
    return low, high


@pytest.mark.parametrize("seed", range(4))
def test_one_walk_agrees_with_bound_propagation(seed: int) -> None:
    """A library by other people, told to enclose a ReLU between two parallel lines."""
    peer = pytest.importorskip("bound_propagation", reason="bound-propagation is not installed")
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 4)).double()
    x = torch.rand(4, 6).double()
    with torch.no_grad():
        box = peer.HyperRectangle.from_eps(x, 0.2)
        expected = peer.BoundModelFactory(adaptive_relu=False).build(net).crown(box).concretize()
        lower, upper = walked(net, x, 0.2)
    torch.testing.assert_close(lower, expected.lower)
    torch.testing.assert_close(upper, expected.upper)


@pytest.mark.parametrize("seed", range(3))
def test_units_settled_early_lose_nothing(seed: int) -> None:
    """Every sign that CROWN's two walks settle is settled, and a unit whose sign stays open has bounds at least as tight."""
    net, x = scene(seed)
    still_open = 0
    with torch.no_grad():
        graph, region = trace(net, x), Region(x, sp.Linf(0.1))
        bounds: dict[int, Bounds] = {}
        for position in before_relus(graph):
            intervals(graph, region, bounds, until=position)
            shape = graph[position].shape
            rows = torch.eye(math.prod(shape)).double().repeat(2, 1).reshape(-1, *shape)
            who = torch.arange(2).repeat_interleave(math.prod(shape))
            low, high = (
                sign * lower_bounds(graph, region, bounds, position, sign * rows, who).reshape(2, *shape)
                for sign in (1, -1)
            )
            lower, upper = refine(graph, region, bounds, position, 2**28)
            assert not ((lower < 0) & (upper > 0) & ((low >= 0) | (high <= 0))).any()
            left = (lower < 0) & (upper > 0)
            assert (lower[left] >= low[left] - 1e-12).all()
            assert (upper[left] <= high[left] + 1e-12).all()
            still_open += int(left.sum())
            bounds[position] = lower, upper
    assert still_open
