"""The recurrence in plain PyTorch operations on preallocated buffers: any device, any floating type."""

import torch
from torch import Tensor

from .steps import Steps


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
    """Run the time loop on an input projection.

    Args:
        kind: "lstm", "gru", "tanh" or "relu".
        steps: which rows each time step owns.
        x: projected inputs (N, G*H) with every bias but the GRU's recurrent one.
        w_hh, bias_hh: recurrent projection; the bias is the GRU's only.
        mask: (B, H) or None.
        h, c: first state (B, H), overwritten by the last one.
        keep: whether `backward` will be called.
        inplace: whether `x` may be overwritten.

    Returns:
        All states (N, H), and what `backward` needs: activated gates (N, S*H), cell states (N, H) of an LSTM.
    """
    size, weight = h.shape[1], w_hh.t()
    out, cells = x.new_empty(steps.total, size), x.new_empty(steps.total, size if kind == "lstm" else 0)
    saved = x.new_empty(steps.total, 4 * size) if kind == "gru" else x if inplace else x.clone()
    outs, xs, gates = steps.views(out), steps.views(x), steps.views(saved)
    blocks = [steps.views(block) for block in saved.split(size, 1)]
    pairs = steps.views(saved[:, : 2 * size])
    cell = steps.views(cells)
    state, memory = h[: steps.rows[0]], c[: steps.rows[0]]
    for s, n in enumerate(steps.rows):
        if len(state) != n:  # packed: some examples end before this step, or begin with it
            state, memory = _resize(h, state, n), _resize(c, memory, n)
        masked = state if mask is None else state * _first(mask, n)
        if kind == "gru":
            recurrent = masked @ weight if bias_hh is None else torch.addmm(bias_hh, masked, weight)
            r, z, g, half = (block[s] for block in blocks)
            torch.add(xs[s][:, : 2 * size], recurrent[:, : 2 * size], out=pairs[s]).sigmoid_()
            half.copy_(recurrent[:, 2 * size :])
            torch.addcmul(xs[s][:, 2 * size :], r, half, out=g).tanh_()
            torch.lerp(g, state, z, out=outs[s])
        else:
            gates[s].addmm_(masked, weight)
            if kind == "lstm":
                pairs[s].sigmoid_()
                i, f, g, o = (block[s] for block in blocks)
                g.tanh_()
                o.sigmoid_()
                memory = torch.mul(f, memory, out=cell[s]).addcmul_(i, g)
                torch.tanh(memory, out=outs[s]).mul_(o)
            else:
                torch.tanh(gates[s], out=outs[s]) if kind == "tanh" else torch.clamp_min(gates[s], 0, out=outs[s])
        state = outs[s]
    h[: len(state)], c[: len(memory)] = state, memory
    if kind in ("tanh", "relu"):
        saved = out
    return (out, saved, cells if kind == "lstm" else None) if keep else (out, None, None)


def slopes(
    kind: str, steps: Steps, saved: Tensor, cells: Tensor | None, h0: Tensor, c0: Tensor, out: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Everything in the backward pass that does not depend on the incoming gradient, for all steps at once.

    Returns:
        Slopes of the recurrent pre-activations (N, G, H); of the way past the product, h for a GRU and c for an LSTM
        (N, H); of the cell state by the output of an LSTM, or of the GRU's input half of n (N, H).
    """
    size = h0.shape[1]
    if kind == "lstm":
        assert cells is not None
        i, f, g, o = saved.split(size, 1)
        t = cells.tanh()
        before = torch.cat(_in_rows(steps, steps.before(cells, c0)))
        gates = torch.stack([g * i * (1 - i), before * f * (1 - f), i * (1 - g * g), t * o * (1 - o)], 1)
        return gates, f, o * (1 - t * t)
    if kind == "gru":
        r, z, n, half = saved.split(size, 1)
        before = torch.cat(_in_rows(steps, steps.before(out, h0)))
        a = (1 - z) * (1 - n * n)
        return torch.stack([a * half * r * (1 - r), (before - n) * z * (1 - z), a * r], 1), z, a
    slope = 1 - out * out if kind == "tanh" else (out > 0).to(out.dtype)
    return slope.unsqueeze(1), out, out


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
    """Run the time loop backwards.

    Args:
        kind, steps, w_hh, mask, h0, c0: as in `forward`, with the first states.
        out, saved, cells: what `forward` returned.
        dout: gradient of all states (N, H) or None.
        dh, dc: gradient of the last states (B, H), overwritten by that of the first.
        gates: whether the gradients of the pre-activations are wanted (for the input or any parameter).
        weights: whether the masked previous states are wanted (for the recurrent weight).
        dmask: (B, H) zeros, filled with the mask gradient (eq. 7); None if nobody asks.
        inplace: whether `saved` may be overwritten.

    Returns:
        Gradients of the recurrent and of the input pre-activations (N, G*H), the masked previous states (N, H).
    """
    size = h0.shape[1]
    slope, past, extra = slopes(kind, steps, saved, cells, h0, c0, out)
    drec = slope.flatten(1)
    slope_, past_, extra_, flat = (steps.views(t) for t in (slope, past, extra, drec))
    douts = steps.views(dout) if dout is not None else [None] * len(steps)
    starts = steps.before(out, h0)
    for s in reversed(range(len(steps))):
        n = steps.rows[s]
        d, memory = _first(dh, n), _first(dc, n)
        if (more := douts[s]) is not None:
            d += more
        if kind == "lstm":
            through = torch.addcmul(memory, d, extra_[s])
            slope_[s][:, :3].mul_(through.unsqueeze(1))
            slope_[s][:, 3].mul_(d)
            torch.mul(through, past_[s], out=memory)
        else:
            slope_[s].mul_(d.unsqueeze(1))
            if kind == "gru":
                extra_[s].mul_(d)
        product = flat[s] @ w_hh
        if dmask is not None:
            _first(dmask, n).addcmul_(product, starts[s])
        if mask is not None:
            product.mul_(_first(mask, n))
        torch.addcmul(product, d, past_[s], out=d) if kind == "gru" else d.copy_(product)
    dx = torch.cat([drec[:, : 2 * size], extra], 1) if kind == "gru" and gates else drec
    return drec, dx, entering_states(steps, out, h0, mask) if weights else None


def entering_states(steps: Steps, out: Tensor, h0: Tensor, mask: Tensor | None) -> Tensor:
    """The masked states that entered each step's product (N, H)."""
    starts = _in_rows(steps, steps.before(out, h0))
    if mask is None:
        return torch.cat(starts)
    if len(set(steps.rows)) == 1:
        return torch.cat(starts).view(len(steps), *mask.shape).mul_(mask).flatten(0, 1)
    return torch.cat([start * _first(mask, len(start)) for start in starts])


def _first(rows: Tensor, n: int) -> Tensor:
    """`rows[:n]`, without a new view where that is all of them."""
    return rows if len(rows) == n else rows[:n]


def _in_rows(steps: Steps, visited: list[Tensor]) -> list[Tensor]:
    """Per-step tensors from the order of the visit back to the order of the rows."""
    return visited if steps.offsets[0] <= steps.offsets[-1] else visited[::-1]


def _resize(states: Tensor, running: Tensor, n: int) -> Tensor:
    """The running examples' states at the next step; those that end are written to `states`, new ones read from it."""
    known = len(running)
    if known < n:
        return torch.cat([running, states[known:n]])
    states[n:known] = running[n:]
    return running[:n]
