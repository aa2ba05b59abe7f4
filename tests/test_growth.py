"""No method's matrix products grow faster than its passes by hand, along any axis of benchmarks/bench_growth.py: counted, not timed."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import bench_growth as growth
from growth_page import BOUNDS

SMALL = growth.Size(layers=2, length=8, batch=3, width=32)
POINTS: dict[str, dict[str, int]] = {
    "small": {},
    "steps": {"steps": 4},
    "layers": {"layers": 6},
    "sites": {"layers": 6, "sites": 6},
    "length": {"length": 48},
    "scores": {"length": 256},
    "batch": {"batch": 20},
    "parameters": {"width": 128},
}
PRODUCTS = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"}


class Products(TorchDispatchMode):
    """Counts multiplications in matrix products (torch's own counter cannot stand a gradient taken within a backward pass)."""

    total = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function._schema.name in PRODUCTS:
            first, second = [a for a in args if isinstance(a, Tensor)][-2:]
            self.total += first.numel() * second.shape[-1]
        return function(*args, **(kwargs or {}))


def products(step: Callable[[], Any]) -> int:
    for _ in range(2):
        step()  # an objective's second step looks at its players with passes of their own
    with sdpa_kernel(SDPBackend.MATH), Products() as count:
        step()
    return count.total


def slack(name: str, size: growth.Size) -> float:
    """Scores are computed beside the layer's own: a marked layer projects its queries, keys and values once more in a pass."""
    return 1.01 + (0.055 * size.sites / size.layers if name == "attention AT" else 0)


@pytest.mark.parametrize("point", ["steps", *(pytest.param(p, marks=pytest.mark.long) for p in POINTS if p != "steps")])
def test_products_stay_within_the_passes_by_hand(point: str) -> None:
    size = replace(SMALL, **POINTS[point])
    found = {name: products(growth.step_named(name, size)) for name in growth.names(point, size)}
    parts = [products(work) / found["plain"] for work in growth.passes(size).values()]
    for name, total in found.items():
        base = found["plain ensemble" if name in ("plain ensemble", "LPD") else "plain"]
        if name in BOUNDS:
            assert total / base <= slack(name, size) * BOUNDS[name](size.steps, *parts), name
            assert total >= base
    assert parts[0] < parts[1] < parts[2], "a forward pass, a look, a second derivative"
