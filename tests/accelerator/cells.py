"""Kernels that accelerators have and the CPU has not: torch runs `nn.LSTM` and `nn.GRU` off the CPU through these fused cells."""

from typing import Any

import torch
from torch import Tensor


def lstm_cell(
    x: Tensor, h: Tensor, c: Tensor, bias: Tensor | None = None, second: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    i, f, g, o = _total(x, h, bias, second).chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    new = f * c + i * g
    return o * new.tanh(), new, torch.cat([i, f, g, o], 1)


def lstm_cell_backward(
    dh: Tensor | None, dc: Tensor | None, c: Tensor, new: Tensor, gates: Tensor, has_bias: bool
) -> tuple[Any, Any, Any]:
    i, f, g, o = gates.chunk(4, 1)
    dh = torch.zeros_like(c) if dh is None else dh
    t = new.tanh()
    d = dh * o * (1 - t * t) + (0 if dc is None else dc)
    dgates = torch.cat([d * g * i * (1 - i), d * c * f * (1 - f), d * i * (1 - g * g), dh * t * o * (1 - o)], 1)
    return dgates, d * f, dgates.sum(0) if has_bias else None


def gru_cell(
    x: Tensor, h: Tensor, state: Tensor, bias: Tensor | None = None, second: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    (xr, xz, xn), (hr, hz, hn) = _total(x, bias).chunk(3, 1), _total(h, second).chunk(3, 1)
    r, z = (xr + hr).sigmoid(), (xz + hz).sigmoid()
    n = (xn + r * hn).tanh()
    return (1 - z) * n + z * state, torch.cat([r, z, n, state, hn], 1)


def gru_cell_backward(dh: Tensor, kept: Tensor, has_bias: bool) -> tuple[Any, ...]:
    r, z, n, state, hn = kept.chunk(5, 1)
    dn = dh * (1 - z) * (1 - n * n)
    dr, dz = dn * hn * r * (1 - r), dh * (state - n) * z * (1 - z)
    dx, drec = torch.cat([dr, dz, dn], 1), torch.cat([dr, dz, dn * r], 1)
    return dx, drec, dh * z, dx.sum(0) if has_bias else None, drec.sum(0) if has_bias else None


def _total(*parts: Tensor | None) -> Tensor:
    return sum(part for part in parts if part is not None)  # type: ignore[return-value]


CELLS = {
    "_thnn_fused_lstm_cell": lstm_cell,
    "_thnn_fused_lstm_cell_backward_impl": lstm_cell_backward,
    "_thnn_fused_gru_cell": gru_cell,
    "_thnn_fused_gru_cell_backward": gru_cell_backward,
}
