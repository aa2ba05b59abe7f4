"""The masked recurrence as one autograd function that computes no gradient nobody asked for."""

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from . import fused as recurrent_native
from . import launched as recurrent_launched
from . import plain as recurrent_plain
from .composite import composite
from .projection import project, total
from .steps import Steps

INPUTS = ("x", "w_ih", "bias", "w_hh", "bias_hh", "h", "c", "mask")


def recurrence(
    kind: str,
    steps: Steps,
    x: Tensor,
    w_ih: Tensor | None,
    bias: Tensor | None,
    w_hh: Tensor,
    bias_hh: Tensor | None,
    h: Tensor,
    c: Tensor,
    mask: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """One layer in one direction; arguments and results as in `recurrent_composite.composite`.

    >>> steps = Steps.of([2] * 5)
    >>> x, w_ih, w_hh, h = torch.randn(10, 3), torch.randn(16, 3), torch.randn(16, 4), torch.zeros(2, 4)
    >>> states, last, cell = recurrence("lstm", steps, x, w_ih, None, w_hh, None, h, h, torch.ones(2, 4))
    >>> states.shape, torch.equal(states[-2:], last)
    (torch.Size([10, 4]), True)
    """
    tensors = (x, w_ih, bias, w_hh, bias_hh, h, c, mask)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        return _Recurrence.apply(kind, steps, *map(_visible, tensors))
    out, h, c, _, _ = _run(kind, steps, *tensors, keep=False)
    return out, h, c


def _visible(tensor: Tensor | None) -> Tensor | None:
    """A leaf as a view of itself: autograd can say in the backward pass whether a view is needed, not for a leaf."""
    return tensor.view_as(tensor) if tensor is not None and tensor.requires_grad and tensor.is_leaf else tensor


def _run(
    kind: str,
    steps: Steps,
    x: Tensor,
    w_ih: Tensor | None,
    bias: Tensor | None,
    w_hh: Tensor,
    bias_hh: Tensor | None,
    h: Tensor,
    c: Tensor,
    mask: Tensor | None,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    recurrent_bias, folded = (bias_hh, None) if kind == "gru" else (None, bias_hh)  # elsewhere the two biases are one
    kernel = _kernel(x)
    if kernel is recurrent_native and recurrent_native.joins(kind, x, w_ih):
        both = total(bias, folded)
        column = w_hh.new_zeros(len(w_hh)) if both is None else both
        w_hh, projected = torch.cat([w_hh, w_ih, column.unsqueeze(1)], 1), x.contiguous()  # type: ignore[list-item]
    elif w_ih is None and folded is not None:
        projected = x + folded
    else:
        projected = x.contiguous() if w_ih is None else project(x, w_ih, bias, folded)
    ours = projected.data_ptr() != x.data_ptr()  # what was made here may be overwritten
    h, c = h.clone(memory_format=torch.contiguous_format), c.clone(memory_format=torch.contiguous_format)
    w_hh, mask = w_hh.contiguous(), None if mask is None else mask.contiguous()
    out, saved, cells = kernel.forward(kind, steps, projected, w_hh, recurrent_bias, mask, h, c, keep, inplace=ours)
    return out, h, c, saved, cells


def _kernel(x: Tensor) -> ModuleType:
    """Who runs the time loop: Triton's kernels on an accelerator, C on the CPU, plain PyTorch everywhere else."""
    for kernel in (recurrent_launched, recurrent_native):
        if kernel.usable(x):
            return kernel
    return recurrent_plain


class _Recurrence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kind: str, steps: Steps, *tensors: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        out, h, c, ctx.gates, ctx.cells = _run(kind, steps, *tensors, keep=True)  # type: ignore[arg-type, misc]
        ctx.kind, ctx.steps = kind, steps
        ctx.given = [tensor is not None for tensor in tensors]
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, out)
        return out, h, c

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        *tensors, out = ctx.saved_tensors
        wanted = dict(zip(INPUTS, _wanted(ctx)))
        if torch.is_grad_enabled():
            return None, None, *_differentiable(ctx.kind, ctx.steps, tensors, grads, wanted)
        if ctx.gates is None:
            raise RuntimeError(
                "the backward pass of a recurrence ran a second time; say retain_graph=True the first time"
            )
        return None, None, *_gradients(ctx, tensors, out, grads, wanted)


def _wanted(ctx: Any) -> list[bool]:
    """Which inputs the running backward pass needs: `needs_input_grad` alone does not know of `grad(..., inputs)`."""
    asked = getattr(torch._C, "_will_engine_execute_node", None)
    nodes = iter(ctx.next_functions)
    wanted = []
    for given, needs in zip(ctx.given, ctx.needs_input_grad[2:]):
        node = next(nodes)[0] if given else None
        wanted.append(bool(needs and (asked is None or node is None or asked(node))))
    return wanted


def _graph_is_kept() -> bool:
    """Whether this backward pass was told to retain the graph; True where torch cannot say."""
    ask = getattr(getattr(torch._C, "_autograd", None), "_get_current_graph_task_keep_graph", None)
    return True if ask is None else bool(ask())


def _gradients(
    ctx: Any, tensors: list[Tensor], out: Tensor, grads: tuple[Tensor | None, ...], wanted: dict[str, bool]
) -> list[Tensor | None]:
    x, w_ih, _, w_hh, _, h0, c0, mask = tensors
    dout, dh, dc = grads
    dh = torch.zeros_like(h0) if dh is None else dh.clone(memory_format=torch.contiguous_format)
    dc = torch.zeros_like(c0) if dc is None else dc.clone(memory_format=torch.contiguous_format)
    dmask = torch.zeros_like(mask, memory_format=torch.contiguous_format) if wanted["mask"] else None
    gates = any(wanted[name] for name in ("x", "w_ih", "bias", "w_hh", "bias_hh"))
    kept = _graph_is_kept()
    kernel = _kernel(out)
    joined = wanted["w_hh"] and kernel is recurrent_native and recurrent_native.joins(ctx.kind, x, w_ih)
    drec, dx, entering = kernel.backward(
        ctx.kind,
        ctx.steps,
        w_hh.contiguous(),
        None if mask is None else mask.contiguous(),
        h0.contiguous(),
        c0.contiguous(),
        out,
        ctx.gates,
        ctx.cells,
        None if dout is None else dout.contiguous(),
        dh,
        dc,
        gates=gates,
        weights=wanted["w_hh"],
        dmask=dmask,
        inplace=not kept,
        **({"x": x.contiguous()} if joined else {}),
    )
    if not kept:
        ctx.gates = ctx.cells = None
    found: dict[str, Tensor | None] = {"h": dh, "c": dc, "mask": dmask}
    if wanted["x"]:
        found["x"] = dx if w_ih is None else dx @ w_ih
    if wanted["w_hh"]:
        weights = entering.t() @ drec  # in this order: a tenth faster than its transpose on a CPU
        found["w_hh"] = weights[: w_hh.shape[1]].t()
        if joined:
            found["w_ih"], found["bias"] = weights[w_hh.shape[1] : -1].t(), weights[-1]
            found["bias_hh"] = found["bias"]
    if wanted["w_ih"] and "w_ih" not in found:
        found["w_ih"] = (x.t() @ dx).t()
    if wanted["bias"] and "bias" not in found:
        found["bias"] = dx.sum(0)
    if wanted["bias_hh"] and "bias_hh" not in found:
        found["bias_hh"] = found.get("bias") if drec is dx and wanted["bias"] else drec.sum(0)
    return [found.get(name) if wanted[name] else None for name in INPUTS]


def _differentiable(
    kind: str, steps: Steps, tensors: list[Tensor], grads: tuple[Tensor | None, ...], wanted: dict[str, bool]
) -> list[Tensor | None]:
    """Gradients with a graph of their own (double backward), through the composite."""
    outputs = composite(kind, steps, *tensors)
    used = [(o, g) for o, g in zip(outputs, grads) if g is not None and o.requires_grad]
    asked = [t for t, name in zip(tensors, INPUTS) if wanted[name]]
    if not used or not asked:
        return [None] * len(INPUTS)
    ends, starts = [o for o, _ in used], [g for _, g in used]
    answers = iter(torch.autograd.grad(ends, asked, starts, create_graph=True, allow_unused=True))
    return [next(answers) if wanted[name] else None for name in INPUTS]
