"""The recurrence for accelerators with Triton: a matrix product and one kernel a time step; same contract as `plain`."""

import functools
import importlib.util
import os
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from .native.build import enabled
from .plain import entering_states
from .steps import Steps

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
DEVICES = ("cuda", "xpu")  # where Triton has a compiler; the CPU runs its interpreter, for tests


def usable(x: Tensor) -> bool:
    """Whether the kernels may run for this tensor: switched on, Triton installed, and a device that it compiles for."""
    where = x.device.type in DEVICES or (x.device.type == "cpu" and interpreted())
    return where and x.dtype in DTYPES and enabled() and installed()


def interpreted() -> bool:
    """Whether Triton runs its kernels in Python (`TRITON_INTERPRET=1`)."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@functools.cache
def installed() -> bool:
    return importlib.util.find_spec("triton") is not None


@functools.cache
def _kernels() -> ModuleType:
    from . import gates

    return gates


def _shape(x: Tensor, size: int) -> dict[str, Any]:
    import triton
    import triton.language as tl

    wide = tl.float64 if x.dtype == torch.float64 else tl.float32
    return {"WIDE": wide, "BLOCK": min(256, triton.next_power_of_2(size))}


def forward(
    kind: str,
    steps: Steps,
    x: Tensor,
    w_hh: Tensor,
    bias_hh: Tensor | None,
    mask: Tensor | None,
    h: Tensor,
    c: Tensor,
    keep: bool,
    inplace: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """See `plain.forward`. The states stay in `h` and `c`: examples that have ended, or not begun, are not touched."""
    size, weight, shape = h.shape[1], w_hh.t(), _shape(x, h.shape[1])
    out = x.new_empty(steps.total, size)
    cells = x.new_empty(steps.total, size) if keep and kind == "lstm" else None
    total = x if kind == "gru" or inplace else x.clone()  # a GRU's product stays apart, elsewhere it is added here
    saved = x.new_empty(steps.total, 4 * size) if keep and kind == "gru" else total
    recurrent = x.new_empty(steps.batch, 3 * size) if kind == "gru" else out
    entering = h.clone() if mask is None else h * mask
    rows, blocks = steps.views(total), -(-size // shape["BLOCK"])
    launch = _kernels().forward_step
    for s, (at, n) in enumerate(steps):
        if kind == "gru":
            product = recurrent[:n]
            torch.mm(entering[:n], weight, out=product) if bias_hh is None else torch.addmm(
                bias_hh, entering[:n], weight, out=product
            )
        else:
            rows[s].addmm_(entering[:n], weight)
        launch[(n, blocks)](
            kind, at, size, total, recurrent, out if mask is None else mask, h, c, out, saved, out if cells is None else cells,
            entering, KEEP=keep, MASKED=mask is not None, **shape,
        )  # fmt: skip
    if kind in ("tanh", "relu"):
        saved = out
    return (out, saved, cells) if keep else (out, None, None)


def backward(
    kind: str,
    steps: Steps,
    w_hh: Tensor,
    mask: Tensor | None,
    h0: Tensor,
    c0: Tensor,
    out: Tensor,
    saved: Tensor,
    cells: Tensor | None,
    dout: Tensor | None,
    dh: Tensor,
    dc: Tensor,
    gates: bool,
    weights: bool,
    dmask: Tensor | None,
    inplace: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """See `plain.backward`. What a product adds to the step before it is taken in by that step's kernel."""
    size, width, shape = h0.shape[1], w_hh.shape[0], _shape(out, h0.shape[1])
    drec = saved if inplace and kind == "lstm" else out.new_empty(steps.total, width)
    dx = out.new_empty(steps.total, width) if gates and kind == "gru" else drec
    product, flat = out.new_empty(steps.batch, size), steps.views(drec)
    launch, blocks = _kernels().backward_step, -(-size // shape["BLOCK"])
    visits = list(steps)
    begun = [(0, 0), *visits[:-1]]  # the step before each: where its states lie, and of how many examples
    done, done_from = 0, (0, 0)
    for s in (*reversed(range(len(visits))), None):
        at, n = (0, 0) if s is None else visits[s]
        before = (0, 0) if s is None else begun[s]
        launch[(max(n, done), blocks)](
            kind, size, done, *done_from, n, at, *before, product, _or(mask, out), _or(dmask, out), h0, c0, out, saved, _or(cells, out),
            _or(dout, out), dh, dc, drec, dx, MASKED=mask is not None, ASKED=dmask is not None, LOUD=dout is not None,
            INPUTS=dx is not drec, **shape,
        )  # fmt: skip
        if s is not None:
            torch.mm(flat[s], w_hh, out=product[:n])
        done, done_from = n, before
    return drec, dx, entering_states(steps, out, h0, mask) if weights else None


def _or(tensor: Tensor | None, other: Tensor) -> Tensor:
    """A pointer that the kernel takes but does not follow, where there is no tensor."""
    return other if tensor is None else tensor
