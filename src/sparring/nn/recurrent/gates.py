"""Triton kernels of the masked recurrence: all that a time step does besides its matrix product, in one launch.

One program works on a block of one example's units. Arithmetic is in float32 at least. Imported only where Triton is used.
"""

import triton
import triton.language as tl


@triton.jit
def _tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def _before(states, first, at, rows, row, col, size, ok):
    """What a step started from: the row of the step before, or the first state of an example that began there."""
    known = row + 0 * col < rows
    here = tl.load(states + (at + row).to(tl.int64) * size + col, mask=ok & known, other=0.0)
    begun = tl.load(first + row * size + col, mask=ok & (known == 0), other=0.0)
    return tl.where(known, here, begun)


@triton.jit(do_not_specialize=["at"])
def forward_step(
    KIND: tl.constexpr,
    at,
    size,
    x,
    recurrent,
    mask,
    h,
    c,
    out,
    saved,
    cells,
    entering,
    KEEP: tl.constexpr,
    MASKED: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Gates, cell and state of one step, and the masked state that enters the next product.

    `recurrent` holds the product of a GRU (n, 3H); elsewhere the product was added to `x` (N, G*H) itself.
    """
    row = tl.program_id(0)
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = col < size
    here = (at + row).to(tl.int64)
    own = row * size + col
    if KIND == "lstm":
        gate = x + here * 4 * size + col
        i = tl.sigmoid(tl.load(gate, mask=ok).to(WIDE))
        f = tl.sigmoid(tl.load(gate + size, mask=ok).to(WIDE))
        g = _tanh(tl.load(gate + 2 * size, mask=ok).to(WIDE))
        o = tl.sigmoid(tl.load(gate + 3 * size, mask=ok).to(WIDE))
        memory = f * tl.load(c + own, mask=ok).to(WIDE) + i * g
        state = o * _tanh(memory)
        tl.store(c + own, memory, mask=ok)
        if KEEP:
            kept = saved + here * 4 * size + col
            tl.store(kept, i, mask=ok)
            tl.store(kept + size, f, mask=ok)
            tl.store(kept + 2 * size, g, mask=ok)
            tl.store(kept + 3 * size, o, mask=ok)
            tl.store(cells + here * size + col, memory, mask=ok)
    elif KIND == "gru":
        gate = x + here * 3 * size + col
        product = recurrent + row * 3 * size + col
        r = tl.sigmoid(tl.load(gate, mask=ok).to(WIDE) + tl.load(product, mask=ok).to(WIDE))
        z = tl.sigmoid(tl.load(gate + size, mask=ok).to(WIDE) + tl.load(product + size, mask=ok).to(WIDE))
        half = tl.load(product + 2 * size, mask=ok).to(WIDE)
        g = _tanh(tl.load(gate + 2 * size, mask=ok).to(WIDE) + r * half)
        state = (1 - z) * g + z * tl.load(h + own, mask=ok).to(WIDE)
        if KEEP:
            kept = saved + here * 4 * size + col
            tl.store(kept, r, mask=ok)
            tl.store(kept + size, z, mask=ok)
            tl.store(kept + 2 * size, g, mask=ok)
            tl.store(kept + 3 * size, half, mask=ok)
    else:
        total = tl.load(x + here * size + col, mask=ok).to(WIDE)
        state = _tanh(total) if KIND == "tanh" else tl.where(total > 0, total, total * 0)  # NaN stays
    tl.store(h + own, state, mask=ok)
    tl.store(out + here * size + col, state, mask=ok)
    if MASKED:
        state = state * tl.load(mask + own, mask=ok).to(WIDE)
    tl.store(entering + own, state, mask=ok)


@triton.jit(
    do_not_specialize=["done", "done_at", "done_rows", "now", "at", "before_at", "before_rows"],
)
def backward_step(
    KIND: tl.constexpr,
    size,
    done,
    done_at,
    done_rows,
    now,
    at,
    before_at,
    before_rows,
    product,
    mask,
    dmask,
    h0,
    c0,
    out,
    saved,
    cells,
    dout,
    dh,
    dc,
    drec,
    dx,
    MASKED: tl.constexpr,
    ASKED: tl.constexpr,
    LOUD: tl.constexpr,
    INPUTS: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Take in the product of the step that was done (its `done` examples), then the gates of the next one (`now` examples).

    `dh` holds what reaches a state past its product; `done_at`, `done_rows`, `before_at` and `before_rows` say where the states lie
    that the two steps started from.
    """
    row = tl.program_id(0)
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = col < size
    own = row * size + col
    d = tl.load(dh + own, mask=ok).to(WIDE)
    if row < done:
        p = tl.load(product + own, mask=ok).to(WIDE)
        if ASKED:
            start = _before(out, h0, done_at, done_rows, row, col, size, ok).to(WIDE)
            tl.store(dmask + own, tl.load(dmask + own, mask=ok).to(WIDE) + p * start, mask=ok)
        if MASKED:
            p = p * tl.load(mask + own, mask=ok).to(WIDE)
        d += p
    if row < now:
        here = (at + row).to(tl.int64)
        if LOUD:
            d += tl.load(dout + here * size + col, mask=ok).to(WIDE)
        if KIND == "lstm":
            kept = saved + here * 4 * size + col
            i = tl.load(kept, mask=ok).to(WIDE)
            f = tl.load(kept + size, mask=ok).to(WIDE)
            g = tl.load(kept + 2 * size, mask=ok).to(WIDE)
            o = tl.load(kept + 3 * size, mask=ok).to(WIDE)
            t = _tanh(tl.load(cells + here * size + col, mask=ok).to(WIDE))
            begun = _before(cells, c0, before_at, before_rows, row, col, size, ok).to(WIDE)
            through = tl.load(dc + own, mask=ok).to(WIDE) + d * o * (1 - t * t)
            gate = drec + here * 4 * size + col
            tl.store(gate, through * g * i * (1 - i), mask=ok)
            tl.store(gate + size, through * begun * f * (1 - f), mask=ok)
            tl.store(gate + 2 * size, through * i * (1 - g * g), mask=ok)
            tl.store(gate + 3 * size, d * t * o * (1 - o), mask=ok)
            tl.store(dc + own, through * f, mask=ok)
            d = d * 0
        elif KIND == "gru":
            kept = saved + here * 4 * size + col
            r = tl.load(kept, mask=ok).to(WIDE)
            z = tl.load(kept + size, mask=ok).to(WIDE)
            n = tl.load(kept + 2 * size, mask=ok).to(WIDE)
            half = tl.load(kept + 3 * size, mask=ok).to(WIDE)
            begun = _before(out, h0, before_at, before_rows, row, col, size, ok).to(WIDE)
            a = d * (1 - z) * (1 - n * n)
            dr = a * half * r * (1 - r)
            dz = d * (begun - n) * z * (1 - z)
            gate = drec + here * 3 * size + col
            tl.store(gate, dr, mask=ok)
            tl.store(gate + size, dz, mask=ok)
            tl.store(gate + 2 * size, a * r, mask=ok)
            if INPUTS:
                gate = dx + here * 3 * size + col
                tl.store(gate, dr, mask=ok)
                tl.store(gate + size, dz, mask=ok)
                tl.store(gate + 2 * size, a, mask=ok)
            d = d * z
        else:
            y = tl.load(out + here * size + col, mask=ok).to(WIDE)
            slope = 1 - y * y if KIND == "tanh" else (y > 0).to(WIDE)
            tl.store(drec + here * size + col, d * slope, mask=ok)
            d = d * 0
    tl.store(dh + own, d, mask=ok)
