"""Interval bounds and CROWN on a traced graph, in bounded memory.

CROWN (Zhang et al. 2018) replaces every ReLU by two lines that enclose it between its input's bounds, then carries a
linear function of the output back to the input, where its minimum over the region has a closed form. The work is a
list of *rows*, one for each (example, linear function) pair, cut into pieces that fit in `memory` bytes.
"""

from collections.abc import Callable
from math import prod
from typing import Literal

import torch
from torch import Tensor

from .ops import AFFINE, Relu, Source, Sum
from .region import Region
from .trace import Graph

Bounds = tuple[Tensor, Tensor]
Method = Literal["crown", "crown-ibp", "ibp"]
Progress = Callable[[str, float], None]
COPIES = 6  # tensors of a row's widest shape alive at once while it passes one operation


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


def lower_bounds(
    graph: Graph,
    region: Region,
    bounds: dict[int, Bounds],
    target: int,
    rows: Tensor,
    example: Tensor,
    through_relu: bool = True,
) -> Tensor:
    """Least value of each row of linear functions of node `target`, (R,).

    Args:
        graph: the traced network.
        region: the inputs allowed.
        bounds: pre-activation bounds of every ReLU that `target` depends on.
        target: position of the node the rows read.
        rows: (R, *shape of target) coefficients.
        example: (R,) which example of the region each row is about.
        through_relu: False stops at the first ReLUs on the way and uses their intervals (interval bounds with the
            last affine layers merged, as eq. 8 does).
    """
    pending = {target: rows}
    total = rows.new_zeros(len(rows))
    for position in range(target, -1, -1):
        if position not in pending:
            continue
        node, row = graph[position], pending.pop(position)
        if isinstance(node.op, Source):
            total = total + region.minimum(row, example)
            continue
        if isinstance(node.op, Sum):
            passed = [row * factor for factor in node.op.factors]
        elif isinstance(node.op, AFFINE):
            total = total + node.op.constant(row)
            passed = [node.op.back(row, graph[node.parents[0]].shape)]
        elif through_relu:
            row, constant = _relax(row, bounds[node.parents[0]], example)
            total = total + constant
            passed = [row]
        else:
            lower, upper = (side.relu()[example] for side in bounds[node.parents[0]])
            total = total + (row.clamp(min=0) * lower + row.clamp(max=0) * upper).flatten(1).sum(1)
            continue
        for parent, part in zip(node.parents, passed, strict=True):
            pending[parent] = pending[parent] + part if parent in pending else part
    return total


def _relax(row: Tensor, bounds: Bounds, example: Tensor) -> tuple[Tensor, Tensor]:
    """Pass lower-bounding rows back through a ReLU: positive coefficients take the line below, negative the one above.

    The line above joins the end points; the line below is 0 or the identity, whichever leaves the smaller area.
    """
    lower, upper = (side[example[:1]] for side in bounds) if _alone(example) else bounds
    dead, alive = upper <= 0, lower >= 0
    width = torch.where(dead | alive, torch.ones_like(upper), upper - lower)
    above = torch.where(dead, 0.0, torch.where(alive, 1.0, upper / width)).to(row.dtype)
    below = torch.where(alive, 1.0, torch.where(dead, 0.0, (upper > -lower).to(row.dtype)))
    intercept = torch.where(dead | alive, torch.zeros_like(upper), -lower * above)
    negative = row.clamp(max=0)
    if _alone(example):  # one set of lines serves all rows: nothing to gather
        return torch.where(row < 0, above, below) * row, negative.flatten(1) @ intercept.flatten()
    constant = (negative * intercept[example]).flatten(1).sum(1)
    return torch.where(row < 0, above[example], below[example]) * row, constant


def _alone(example: Tensor) -> bool:
    return bool((example == example[0]).all())


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
            bounds[position] = _refine(graph, region, bounds, position, memory)
        if progress is not None:
            progress(graph[position].name, (done + 1) / len(before_relu))
    return intervals(graph, region, bounds)


def _refine(graph: Graph, region: Region, bounds: dict[int, Bounds], position: int, memory: int) -> Bounds:
    """CROWN bounds for the units of one node whose interval straddles zero; for the others nothing can be gained."""
    lower, upper = (side.flatten(1).clone() for side in bounds[position])
    example, unit = ((lower < 0) & (upper > 0)).nonzero(as_tuple=True)
    shape = graph[position].shape
    for sign, side in ((1.0, lower), (-1.0, upper)):
        for piece in pieces(len(example), graph, lower.dtype, memory):
            who, which = example[piece.start : piece.stop], unit[piece.start : piece.stop]
            rows = lower.new_zeros(len(who), lower.shape[1]).scatter_(1, which[:, None], sign)
            found = sign * lower_bounds(graph, region, bounds, position, rows.reshape(-1, *shape), who)
            better = torch.maximum if sign > 0 else torch.minimum
            side[who, which] = better(side[who, which], found)
    return lower.reshape(-1, *shape), torch.maximum(upper, lower).reshape(-1, *shape)
