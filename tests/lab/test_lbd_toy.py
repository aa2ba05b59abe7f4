"""The toy of section 3.1: exact gradients, ARM without bias, Concrete with."""

import itertools

import pytest
import torch

from sparring.estimators import ARM
from sparring.lab.toys.lbd import Toy, concrete_estimates, estimates, gradient_grid, traces


def test_the_exact_gradient_matches_the_closed_form() -> None:
    """E(f - y)^2 = (E f - y)^2 + Var f with independent units, differentiated by hand."""
    toy = Toy.make(seed=3, examples=400)
    logits = torch.tensor([0.7, -1.1], dtype=torch.float64)
    keep = torch.sigmoid(logits)
    units = torch.relu(toy.x[:, None] * toy.inner) * toy.outer
    mean = (units * keep).sum(1)
    slope = 2 * (mean - toy.y)[:, None] * units + units.square() * (1 - 2 * keep)  # d/d keep
    expected = (slope * keep * (1 - keep)).mean(0)
    torch.testing.assert_close(toy.gradient(logits), expected)


def test_the_data_are_linear() -> None:
    toy = Toy.make(seed=1)
    torch.testing.assert_close(toy.y, (toy.inner * toy.outer).sum() * toy.x)
    assert toy.x.shape == (3000,)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_arm_has_no_bias_and_concrete_has(seed: int) -> None:
    torch.manual_seed(seed)
    grid = gradient_grid(Toy.make(seed, examples=1000), keeps=(0.3, 0.7), samples=200)
    for name in ("ARM", "DisARM"):
        assert float(grid.moments[name].z.abs().max()) < 4.5
    assert float(grid.moments["Concrete"].z.abs().max()) > 10
    for found in grid.moments.values():
        identity = found.bias**2 + found.deviation**2 * 199 / 200
        torch.testing.assert_close(found.mse, identity)


def test_concrete_bias_vanishes_with_the_temperature() -> None:
    torch.manual_seed(0)
    toy = Toy.make(0, examples=1000)
    logits = torch.zeros(2, dtype=torch.float64)
    exact = toy.gradient(logits)
    bias = [float((concrete_estimates(toy, logits, t, 400).mean(0) - exact).abs().max()) for t in (1.0, 0.05)]
    assert bias[1] < 0.2 * bias[0]


def test_traces_descend_and_arm_follows() -> None:
    torch.manual_seed(0)
    toy = Toy.make(0, examples=1000)
    path = traces(toy, steps=25, lr=0.5, samples=50)
    values = [float(toy.expected(point)) for point in path.logits]
    assert all(later <= earlier + 1e-12 for earlier, later in itertools.pairwise(values))
    error = {name: float((path.estimated[name] - path.exact).square().mean()) for name in ("ARM", "Concrete")}
    assert error["ARM"] < error["Concrete"]


def test_figures_are_plain_data() -> None:
    toy = Toy.make(0, examples=100)
    grid = gradient_grid(toy, keeps=(0.4, 0.6), samples=10)
    drawn = grid.figures(0) + grid.figures(1) + traces(toy, steps=2, samples=2).figures()
    assert [f["kind"] for f in drawn].count("heatmap") == 18
    assert len(drawn[-1]["series"]) == 4
    assert estimates(toy, torch.zeros(2, dtype=torch.float64), ARM(), 7).shape == (7, 2)
