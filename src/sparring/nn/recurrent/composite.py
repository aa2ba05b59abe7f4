"""Masked recurrences in a few readable lines: the definition, the oracle of the tests, and the double backward."""

import torch
from torch import Tensor
from torch.nn import functional as F

from .steps import Steps

GATES = {"lstm": 4, "gru": 3, "tanh": 1, "relu": 1}


def lstm_cell(x: Tensor, recurrent: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    i, f, g, o = (x + recurrent).chunk(4, -1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def gru_cell(x: Tensor, recurrent: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    (xr, xz, xn), (r, z, n) = x.chunk(3, -1), recurrent.chunk(3, -1)
    n = torch.tanh(xn + torch.sigmoid(xr + r) * n)
    z = torch.sigmoid(xz + z)
    return (1 - z) * n + z * h, c  # h itself is not masked: only the recurrent product sees the mask


def tanh_cell(x: Tensor, recurrent: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    return torch.tanh(x + recurrent), c


def relu_cell(x: Tensor, recurrent: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    return torch.relu(x + recurrent), c


CELLS = {"lstm": lstm_cell, "gru": gru_cell, "tanh": tanh_cell, "relu": relu_cell}


def composite(
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
    """Run one layer in one direction: h_t = cell(W x_t + b, U (m * h_{t-1}) + b', h_{t-1}, c_{t-1}), eq. 1 of the paper.

    Args:
        kind: "lstm", "gru", "tanh" or "relu".
        steps: which rows each time step owns.
        x: inputs of all steps (N, I).
        w_ih, bias: input projection (G*H, I), (G*H); without a weight `x` is the projection itself (N, G*H).
        w_hh, bias_hh: recurrent projection (G*H, H), (G*H).
        h, c: first state (B, H); `c` passes through where the cell has none.
        mask: (B, H), the same at every step; None for ones.

    Returns:
        All states (N, H) in the row order of `x`, the last state and the last cell state (B, H).
    """
    projected = x if w_ih is None else F.linear(x, w_ih, bias)
    outputs: dict[int, Tensor] = {}
    for at, n in steps:
        entering = h[:n] if mask is None else h[:n] * mask[:n]
        new_h, new_c = CELLS[kind](projected[at : at + n], F.linear(entering, w_hh, bias_hh), h[:n], c[:n])
        outputs[at] = new_h
        h, c = torch.cat([new_h, h[n:]]), torch.cat([new_c, c[n:]])
    return torch.cat([outputs[at] for at in sorted(outputs)]), h, c
