"""Certified margins: how far the true class stays ahead of every other one, whatever the perturbation."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import get_args

import torch
from torch import Tensor, nn

from ...balls import Ball, check_ball
from .crown import Bounds, Method, Progress, capacity, lower_bounds, per_example, per_row, pieces, tighten
from .region import Region
from .trace import Graph, trace

MEMORY = 2**28
Model = nn.Module | Sequence[nn.Module]


@dataclass(frozen=True)
class Certificate:
    """Lower bounds on the margins of eq. 9, and what follows from them."""

    margins: Tensor
    """(B, C-1) lower bounds on `logit[true] - logit[other]`, the other classes in order."""

    @property
    def lower(self) -> Tensor:
        """(B,) the smallest of an example's margins, the quantity of Fig. 2."""
        return self.margins.amin(1)

    @property
    def certified(self) -> Tensor:
        """(B,) true where no perturbation in the region can change the prediction."""
        return self.lower > 0

    @property
    def share(self) -> float:
        """Certified accuracy: the share of examples that are right and provably stay right."""
        return self.certified.double().mean().item()


@torch.no_grad()
def certify(
    model: Model,
    inputs: Tensor,
    targets: Tensor,
    ball: Ball,
    *,
    method: Method = "crown",
    memory: int = MEMORY,
    progress: Progress | None = None,
) -> Certificate:
    """Bound the margins of a classifier, or of the mean logit of an ensemble, over a ball around each input.

    Example:
        >>> import sparring as sp, torch
        >>> net = torch.nn.Linear(2, 2, bias=False)
        >>> net.weight = torch.nn.Parameter(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
        >>> certify(net, torch.tensor([[1.0, 0.0]]), torch.tensor([0]), sp.Linf(0.25)).margins
        tensor([[0.5000]])

    Args:
        model: a module in evaluation mode made of the operations listed in `layers.SUPPORTED`; an ensemble (with a
            `members` module list) or a sequence of modules stands for the mean of the members' logits.
        inputs: (B, ...) examples.
        targets: (B,) true classes.
        ball: `sp.Linf(radius)` or `sp.L2(radius)`; a box cuts it to valid inputs.
        method: `"crown"`, `"crown-ibp"` (intervals inside, CROWN for the margins: cheaper, looser) or `"ibp"`.
        memory: bytes the rows in flight may take; smaller is slower, never different. A warning comes before anything is computed
            where one row alone takes more.
        progress: called with (where, share done) as layers are finished.

    Returns:
        A `Certificate`. Bounds are sound in exact arithmetic; rounding is not accounted for, so give a float64
        model and inputs where margins of about 1e-5 matter.

    Paper: Wu et al., section 4.4, eqs. 8-9; CROWN with the adaptive lower slope (Zhang et al. 2018).
    """
    return _certify(model, inputs, targets, ball, None, method, memory, progress)


def _certify(
    model: Model,
    inputs: Tensor,
    targets: Tensor,
    ball: Ball,
    radius: Tensor | None,
    method: Method,
    memory: int,
    progress: Progress | None,
) -> Certificate:
    """`certify`, with a radius (B,) for each example where they have their own."""
    if method not in get_args(Method):
        raise ValueError(f"method is {method!r}; use one of {', '.join(get_args(Method))}")
    graph = trace(model, inputs)
    if len(graph[-1].shape) != 1 or graph[-1].shape[0] < 2:
        raise ValueError(
            f"the model's output has shape {(len(inputs), *graph[-1].shape)}; certificates need (B, classes), two at least"
        )
    if targets.shape != inputs.shape[:1] or targets.is_floating_point():
        raise ValueError(
            f"targets {tuple(targets.shape)} of {targets.dtype}: give one class number for each of {len(inputs)} examples"
        )
    targets = targets.long()  # bytes and booleans would choose rows as a mask
    if bool(((targets < 0) | (targets >= graph[-1].shape[0])).any()):
        raise ValueError(
            f"targets run from {targets.min()} to {targets.max()}; the model has classes 0 to {graph[-1].shape[0] - 1}"
        )
    expected_memory(graph, inputs.dtype, memory)
    margins = []
    examples = _examples(len(inputs), graph, inputs.dtype, memory)
    for done, part in enumerate(examples):
        cut = slice(part.start, part.stop)
        region = Region(inputs[cut], ball, None if radius is None else radius[cut])

        def report(where: str, share: float, done: int = done) -> None:
            if progress is not None:
                progress(where, (done + share) / len(examples))

        bounds = tighten(graph, region, method, memory, report)
        margins.append(_margins(graph, region, bounds, targets[cut], method, memory))
    return Certificate(torch.cat(margins) if margins else inputs.new_zeros(0, graph[-1].shape[0] - 1))


def output_bounds(
    model: Model, inputs: Tensor, ball: Ball, *, method: Method = "crown", memory: int = MEMORY
) -> Bounds:
    """Lower and upper bounds of every output, (B, C) each.

    Example:
        >>> import sparring as sp, torch
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
        >>> lower, upper = output_bounds(net, torch.zeros(1, 2), sp.Linf(0.1))
        >>> bool((lower <= net(torch.zeros(1, 2))).all() and (net(torch.zeros(1, 2)) <= upper).all())
        True
    """
    with torch.no_grad():
        graph = trace(model, inputs)
        region = Region(inputs, ball)
        bounds = tighten(graph, region, method, memory)
        classes = prod(graph[-1].shape)
        unit = torch.eye(classes, dtype=inputs.dtype, device=inputs.device).expand(len(inputs), -1, -1)
        lower = _rows(graph, region, bounds, unit, method, memory)
        upper = -_rows(graph, region, bounds, -unit, method, memory)
        return lower, upper


@torch.no_grad()
def certified_radius(
    model: Model,
    inputs: Tensor,
    targets: Tensor,
    ball: Ball,
    *,
    halvings: int = 10,
    method: Method = "crown",
    memory: int = MEMORY,
) -> Tensor:
    """The largest radius, up to the ball's, at which each example is certified (0 where it is wrong already), (B,).

    Example:
        >>> import sparring as sp, torch
        >>> net = torch.nn.Linear(2, 2, bias=False)
        >>> net.weight = torch.nn.Parameter(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
        >>> radius = certified_radius(net, torch.tensor([[1.0, 0.0]]), torch.tensor([0]), sp.Linf(1.0))
        >>> bool((radius <= 0.5).all() and (radius > 0.498).all())
        True

    Args:
        model: see `certify`.
        inputs: (B, ...) examples.
        targets: (B,) true classes.
        ball: the norm, the range of valid inputs, and the radius where the bisection starts.
        halvings: bisection steps; the answer is within `ball.radius / 2**halvings`, and always certified.
        method: see `certify`.
        memory: see `certify`.
    """
    check_ball(ball, "certified_radius")

    def holds(radius: Tensor) -> Tensor:
        return _certify(model, inputs, targets, ball, radius, method, memory, None).certified

    good = torch.zeros(len(inputs), dtype=inputs.dtype, device=inputs.device)
    bad = torch.full_like(good, ball.radius)
    whole = holds(bad)
    for _ in range(halvings):
        middle = (good + bad) / 2
        held = holds(middle)
        good, bad = torch.where(held, middle, good), torch.where(held, bad, middle)
    return torch.where(whole, torch.full_like(good, ball.radius), good)


def _margins(
    graph: Graph, region: Region, bounds: dict[int, Bounds], targets: Tensor, method: Method, memory: int
) -> Tensor:
    """Eq. 8 as rows: +1 at the true class, -1 at each other one."""
    classes = graph[-1].shape[0]
    unit = torch.eye(classes, dtype=region.centre.dtype, device=region.centre.device)
    others = torch.arange(classes - 1, device=targets.device)[None]
    others = others + (others >= targets[:, None]).long()  # s(j, i) of eq. 8
    return _rows(graph, region, bounds, unit[targets][:, None] - unit[others], method, memory)


def _rows(
    graph: Graph, region: Region, bounds: dict[int, Bounds], wanted: Tensor, method: Method, memory: int
) -> Tensor:
    """Lower bounds of the linear functions `wanted` (B, S, C) of the output, (B, S): the better of the two methods."""
    batch, count = wanted.shape[:2]
    rows = wanted.reshape(-1, *graph[-1].shape)
    example = torch.arange(batch, device=rows.device).repeat_interleave(count)
    found = []
    for piece in pieces(len(rows), graph, rows.dtype, memory):
        part, who = rows[piece.start : piece.stop], example[piece.start : piece.stop]
        best = lower_bounds(graph, region, bounds, len(graph) - 1, part, who, through_relu=False)
        if method != "ibp":
            best = torch.maximum(best, lower_bounds(graph, region, bounds, len(graph) - 1, part, who))
        found.append(best)
    return torch.cat(found).reshape(batch, count)


def expected_memory(graph: Graph, dtype: torch.dtype, memory: int) -> int:
    """Bytes that a certificate will take beyond the model and the inputs: the rows in flight and the bounds of their examples.

    Warns where not even one row of one example fits into `memory`: it is run all the same, with what it needs.
    """
    least = per_row(graph, dtype) + per_example(graph, dtype)
    if least > memory:
        warnings.warn(
            f"one row of this model and the bounds of one example take {_mib(least)}, more than memory={memory} ({_mib(memory)}) "
            "allows: certify goes on, one row at a time; raise memory=, or certify a smaller model or smaller inputs",
            stacklevel=4,
        )
    return max(least, memory + per_example(graph, dtype))


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"


def _examples(count: int, graph: Graph, dtype: torch.dtype, memory: int) -> list[range]:
    """Cut the examples so that the bounds of all nodes fit in `memory`, and one node's rows about fill a piece."""
    widest = max(prod(node.shape) for node in graph)
    length = max(1, min(memory // per_example(graph, dtype), capacity(graph, dtype, memory) // widest))
    return [range(start, min(start + length, count)) for start in range(0, count, length)]
