"""The recurrence as one native call per sequence; same contract as `recurrent_plain`."""

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from .native.build import enabled, library
from .projection import FEW
from .steps import Steps

KINDS = {"lstm": 0, "gru": 1, "tanh": 2, "relu": 3}
PANEL = 16


def usable(x: Tensor) -> bool:
    """Whether the native loop may run for this tensor: float32 on the CPU, switched on, and built."""
    return x.dtype == torch.float32 and x.device.type == "cpu" and enabled() and library() is not None


def joins(kind: str, x: Tensor, w_ih: Tensor | None) -> bool:
    """Whether the inputs go through the recurrent product: for few of them, a projection costs more memory than sums."""
    return w_ih is not None and x.shape[1] < FEW and kind != "gru" and usable(x)


def _pointer(tensor: Tensor | None) -> ctypes.c_void_p | None:
    if tensor is None:
        return None
    assert tensor.is_contiguous(), "the native loop takes contiguous arrays"
    return ctypes.c_void_p(tensor.data_ptr())


def _pack(matrix: Tensor, transposed: bool) -> Tensor:
    """Panels of 16 columns of the matrix, or of its transpose."""
    rows, cols = matrix.shape
    depth, width, across, down = (cols, rows, 1, cols) if transposed else (rows, cols, cols, 1)
    packed = matrix.new_empty(-(-width // PANEL) * PANEL * depth)
    longs = map(ctypes.c_long, (depth, width, across, down))
    library().sparring_pack(_pointer(matrix), *longs, _pointer(packed))  # type: ignore[union-attr]
    return packed


def _share(batch: int, work: int, run: Callable[[int, int], None]) -> None:
    """Call `run(first, last)` on equal shares of the batch, one a thread; examples never meet inside a recurrence."""
    threads = max(1, min(torch.get_num_threads(), batch // 4, work // 2_000_000))
    if threads == 1:
        run(0, batch)
        return
    bounds = [batch * t // threads for t in range(threads + 1)]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(run, bounds[:-1], bounds[1:]))


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
    """See `recurrent_plain.forward`; `w_hh` may be [w_hh, w_ih, bias], then `x` is the inputs instead of their projection."""
    size, gates = h.shape[1], 4 if kind == "gru" else w_hh.shape[0] // h.shape[1]
    inputs = x.shape[1] if w_hh.shape[1] > size else 0
    out = x.new_empty(steps.total, size)
    reuse = inplace and kind != "gru" and not inputs
    saved = (x if reuse else x.new_empty(steps.total, gates * size)) if keep else None
    cells = x.new_empty(steps.total, size) if keep and kind == "lstm" else None
    packed = _pack(w_hh, transposed=True)
    if kind == "gru" and bias_hh is None:
        bias_hh = x.new_zeros(3 * size)

    def run(first: int, last: int) -> None:
        scratch = x.new_empty(last - first, 4 * size if kind == "gru" else w_hh.shape[1])
        room = saved if saved is not None else x.new_empty(last - first, gates * size)
        library().sparring_forward(  # type: ignore[union-attr]
            KINDS[kind],
            ctypes.c_long(len(steps)),
            *steps.longs,
            *map(ctypes.c_long, (first, last, size)),
            _pointer(x),
            ctypes.c_long(inputs),
            *map(_pointer, (packed, bias_hh, mask, h, c, out, room, cells)),
            int(keep),
            _pointer(scratch),
        )

    _share(h.shape[0], steps.total * w_hh.numel(), run)
    return out, saved, cells


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
    x: Tensor | None = None,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """See `recurrent_plain.backward`; with the inputs `x` of a forward pass that they joined, the third result is [states, x, 1]."""
    size, width, inputs = h0.shape[1], w_hh.shape[0], 0 if x is None else x.shape[1]
    drec = (saved if inplace and kind != "gru" else saved.new_empty(steps.total, width)) if gates else None
    dx = saved.new_empty(steps.total, width) if gates and kind == "gru" else drec
    entering = out.new_empty(steps.total, size + (inputs + 1 if inputs else 0)) if weights else None
    packed = _pack(w_hh, transposed=False)

    def run(first: int, last: int) -> None:
        scratch = out.new_empty(last - first, size)
        room = drec if drec is not None else out.new_empty(last - first, width)
        side = dx if dx is not None else out.new_empty(last - first, width)
        library().sparring_backward(  # type: ignore[union-attr]
            KINDS[kind],
            ctypes.c_long(len(steps)),
            *steps.longs,
            *map(ctypes.c_long, (first, last, size)),
            *map(_pointer, (packed, mask, h0, c0, out, saved, cells, dout, dh, dc, room, side)),
            int(gates),
            _pointer(x),
            ctypes.c_long(inputs),
            *map(_pointer, (entering, dmask, scratch)),
        )

    _share(h0.shape[0], steps.total * w_hh.numel(), run)
    return drec, dx, entering
