"""Interval bounds and CROWN on a traced graph, in bounded memory.

CROWN (Zhang et al. 2018) replaces every ReLU by two lines that enclose it between its input's bounds, then carries a
linear function of the output back to the input, where its minimum over the region has a closed form. The work is a
list of *rows*, one for each (example, linear function) pair, cut into pieces that fit in `memory` bytes.
"""

from collections.abc import Callable, Iterator
from math import prod
from typing import Literal

import torch
from torch import Tensor

from .backward import Bounds, both_bounds, lower_bounds
from .ops import Relu, Source, Sum
from .patches import Window
from .region import Region
from .trace import Graph

Method = Literal["crown", "crown-ibp", "ibp"]
Progress = Callable[[str, float], None]
# Of a row's widest shape, alive at once while it passes one operation: measured, torch's own buffers among them.
COPIES = 12
# Lines and columns of a map whose units walk back together: they see nearly the same window of the input.
TILE = 4


def intervals(
    graph: Graph, region: Region, known: dict[int, Bounds] | None = None, until: int | None = None
) -> dict[int, Bounds]:
    """Interval bounds of every node up to `until`, starting from those already known.

    Example:
        >>> import sparring as sp, torch
        >>> from sparring.metrics.certified.trace import trace
        >>> net = torch.nn.Linear(2, 1, bias=False)
        >>> _ = torch.nn.init.constant_(net.weight, 1.0)
        >>> graph = trace(net, torch.zeros(1, 2))
        >>> lower, upper = intervals(graph, Region(torch.zeros(1, 2), sp.Linf(0.5)))[1]
        >>> lower.item(), upper.item()
        (-1.0, 1.0)
    """
    bounds: dict[int, Bounds] = {} if known is None else known
    for position, node in enumerate(graph[: None if until is None else until + 1]):
        if position in bounds:
            continue
        if isinstance(node.op, Source):
            bounds[position] = (region.lower, region.upper)
        elif isinstance(node.op, Relu):
            lower, upper = bounds[node.parents[0]]
            bounds[position] = (lower.relu(), upper.relu())
        elif isinstance(node.op, Sum):
            pairs = [(f, bounds[p]) for f, p in zip(node.op.factors, node.parents, strict=True)]
            centre = sum(f * (low + high) / 2 for f, (low, high) in pairs)
            radius = sum(abs(f) * (high - low) / 2 for f, (low, high) in pairs)
            bounds[position] = (centre - radius, centre + radius)  # type: ignore[assignment]
        else:
            lower, upper = bounds[node.parents[0]]
            centre, radius = node.op.forward((lower + upper) / 2), node.op.spread((upper - lower) / 2)
            bounds[position] = (centre - radius, centre + radius)
    return bounds


def per_row(graph: Graph, dtype: torch.dtype) -> int:
    """Bytes that one row takes on its way back to the input."""
    return COPIES * max(prod(node.shape) for node in graph) * dtype.itemsize


def per_example(graph: Graph, dtype: torch.dtype) -> int:
    """Bytes that the bounds of one example take: both sides of every node, and as much again while they are made."""
    return 4 * sum(prod(node.shape) for node in graph) * dtype.itemsize


def capacity(graph: Graph, dtype: torch.dtype, memory: int) -> int:
    """How many rows may be in flight at once, at least one."""
    return max(1, memory // per_row(graph, dtype))


def pieces(rows: int, graph: Graph, dtype: torch.dtype, memory: int) -> list[range]:
    """Cut `rows` rows into runs that need at most about `memory` bytes each."""
    length = capacity(graph, dtype, memory)
    return [range(start, min(start + length, rows)) for start in range(0, rows, length)]


def tighten(
    graph: Graph, region: Region, method: Method, memory: int, progress: Progress | None = None
) -> dict[int, Bounds]:
    """Bounds of every node: intervals, made tighter by CROWN rows before each ReLU where a unit's sign is open."""
    bounds: dict[int, Bounds] = {}
    before_relu = list(dict.fromkeys(node.parents[0] for node in graph if isinstance(node.op, Relu)))
    for done, position in enumerate(before_relu):
        intervals(graph, region, bounds, until=position)
        if method == "crown":
            bounds[position] = refine(graph, region, bounds, position, memory)
        if progress is not None:
            progress(graph[position].name, (done + 1) / len(before_relu))
    return intervals(graph, region, bounds)


def refine(graph: Graph, region: Region, bounds: dict[int, Bounds], position: int, memory: int) -> Bounds:
    """Bounds for the units of one node whose interval straddles zero; for the others nothing can be gained.

    One walk back bounds a unit from both sides, a little loosely; CROWN's two walks are for those whose sign is then still open.
    """
    lower, upper = (side.flatten(1).clone() for side in bounds[position])
    shape = graph[position].shape
    for who, which, window in _tiles(lower, upper, graph, position, memory):
        rows = _units(which, shape, window, 1.0, lower)
        low, high = both_bounds(graph, region, bounds, position, rows, who, window)
        lower[who, which] = torch.maximum(lower[who, which], low)
        upper[who, which] = torch.minimum(upper[who, which], high)
    for sign, side in ((1.0, lower), (-1.0, upper)):
        better = torch.maximum if sign > 0 else torch.minimum
        for who, which, window in _tiles(lower, upper, graph, position, memory):
            rows = _units(which, shape, window, sign, lower)
            found = sign * lower_bounds(graph, region, bounds, position, rows, who, window=window)
            side[who, which] = better(side[who, which], found)
    return lower.reshape(-1, *shape), torch.maximum(upper, lower).reshape(-1, *shape)


def _tiles(
    lower: Tensor, upper: Tensor, graph: Graph, position: int, memory: int
) -> Iterator[tuple[Tensor, Tensor, Window | None]]:
    """(examples, units, their window of the map) of the units whose sign is open, in pieces that fit in `memory`."""
    example, unit = ((lower < 0) & (upper > 0)).nonzero(as_tuple=True)
    shape = graph[position].shape
    tiles: list[tuple[Tensor, Window | None]] = [(torch.arange(len(unit), device=unit.device), None)]
    if len(shape) == 3 and len(unit) > capacity(graph, lower.dtype, memory):  # else all walk back at once
        corners = [(top, left) for top in range(0, shape[1], TILE) for left in range(0, shape[2], TILE)]
        line, column = unit // shape[2] % shape[1], unit % shape[2]
        tiles = [
            (
                ((line // TILE == top // TILE) & (column // TILE == left // TILE)).nonzero()[:, 0],
                ((top, min(top + TILE, shape[1])), (left, min(left + TILE, shape[2]))),
            )
            for top, left in corners
        ]
    for inside, window in tiles:
        for piece in pieces(len(inside), graph, lower.dtype, memory):
            chosen = inside[piece.start : piece.stop]
            yield example[chosen], unit[chosen], window


def _units(unit: Tensor, shape: tuple[int, ...], window: Window | None, sign: float, like: Tensor) -> Tensor:
    """Rows that read one unit each, (R, *shape) or the window of it."""
    if window is not None:
        (top, bottom), (left, right) = window
        channel, line, column = unit // (shape[1] * shape[2]), unit // shape[2] % shape[1], unit % shape[2]
        shape = (shape[0], bottom - top, right - left)
        unit = (channel * shape[1] + line - top) * shape[2] + column - left
    return like.new_zeros(len(unit), prod(shape)).scatter_(1, unit[:, None], sign).reshape(-1, *shape)
