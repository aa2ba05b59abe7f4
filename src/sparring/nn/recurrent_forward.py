"""Run any torch recurrent module with a mask on its recurrent connection, using the module's own parameters."""

from collections.abc import Callable, Sequence
from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence

from .recurrent_function import recurrence
from .recurrent_steps import Steps

Masks = Tensor | Sequence[Tensor | None]
State = Tensor | tuple[Tensor, Tensor]
_FUSED = {"LSTM": torch.lstm, "GRU": torch.gru, "RNN_TANH": torch.rnn_tanh, "RNN_RELU": torch.rnn_relu}
_KINDS = {"LSTM": "lstm", "GRU": "gru", "RNN_TANH": "tanh", "RNN_RELU": "relu"}


def connections(module: nn.RNNBase) -> int:
    """How many recurrent connections a module has: one per layer and direction."""
    return module.num_layers * (2 if module.bidirectional else 1)


def refuse_projections(module: nn.RNNBase) -> None:
    if module.proj_size:
        raise ValueError(
            f"{type(module).__name__}(proj_size={module.proj_size}): recurrent masks do not support projections; "
            "use proj_size=0 and a Linear layer after the recurrence"
        )


def masked_forward(
    module: nn.RNNBase, input: Tensor | PackedSequence, state: State | None = None, mask: Masks | None = None
) -> tuple[Tensor | PackedSequence, State]:
    """`module(input, state)` with `h_{t-1}` multiplied by a mask, the same at every step, where it enters `weight_hh`.

    The cell state and the emitted output are not masked (Park et al., eq. 1). Without a mask torch's fused kernel runs;
    with one mask for the whole batch too, on `weight_hh * mask`; masks per example run our kernel.

    >>> lstm, x = nn.LSTM(3, 4), torch.randn(5, 2, 3)
    >>> output, (h, c) = masked_forward(lstm, x, mask=torch.ones(1, 2, 4))
    >>> torch.allclose(output, lstm(x)[0], atol=1e-6)
    True

    Args:
        module: an `nn.LSTM`, `nn.GRU` or `nn.RNN`, ours or torch's.
        input, state: as the module takes them: padded, batch first, packed or without a batch dimension.
        mask: (layers * directions, B or 1, H), in the order of torch's states; or one tensor (B or 1, H) or None for each
            layer and direction. Rows follow the order of the caller's batch, also for packed input.
    """
    refuse_projections(module)
    if isinstance(input, PackedSequence):
        return _packed(module, input, state, mask)
    if input.dim() not in (2, 3):
        raise ValueError(f"{type(module).__name__}: input must have 2 or 3 dimensions, got shape {tuple(input.shape)}")
    if input.dim() == 3:
        return _batched(module, input, state, mask)
    state = None if state is None else _each(state, lambda s: s.unsqueeze(1))
    output, last = _batched(module, input.unsqueeze(0 if module.batch_first else 1), state, mask)
    return output.squeeze(0 if module.batch_first else 1), _each(last, lambda s: s.squeeze(1))


def _batched(module: nn.RNNBase, input: Tensor, state: State | None, mask: Masks | None) -> tuple[Tensor, State]:
    batch, length = (input.shape[0], input.shape[1]) if module.batch_first else (input.shape[1], input.shape[0])
    state = _first_state(module, input, state, batch)
    module.check_forward_args(input, state, None)  # type: ignore[arg-type]
    masks = _checked(module, mask, batch)
    if all(m is None or m.shape[0] == 1 for m in masks):
        return _fused(module, masks, input, state)
    rows = (input.transpose(0, 1) if module.batch_first else input).reshape(length * batch, -1)
    output, last = _layers(module, rows, [batch] * length, state, masks)
    output = output.view(length, batch, -1)
    return output.transpose(0, 1) if module.batch_first else output, last


def _packed(module: nn.RNNBase, input: PackedSequence, state: State | None, mask: Masks | None) -> tuple[PackedSequence, State]:
    data, sizes, order, back = input
    batch = int(sizes[0])
    state = _first_state(module, data, state, batch)
    masks = _checked(module, mask, batch)
    if order is not None:
        state = _each(state, lambda s: s.index_select(1, order))
        masks = [m.index_select(0, order) if m is not None and m.shape[0] > 1 else m for m in masks]
    module.check_forward_args(data, state, sizes)  # type: ignore[arg-type]
    if all(m is None or m.shape[0] == 1 for m in masks):
        output, last = _fused(module, masks, data, state, sizes)
    else:
        output, last = _layers(module, data, sizes.tolist(), state, masks)
    if back is not None:
        last = _each(last, lambda s: s.index_select(1, back))
    return PackedSequence(output, sizes, order, back), last


def _layers(
    module: nn.RNNBase, rows: Tensor, sizes: list[int], state: State, masks: list[Tensor | None]
) -> tuple[Tensor, State]:
    """Layer by layer, direction by direction, on flat rows; at least in float32, also under autocast."""
    dtype, kind = rows.dtype, _KINDS[module.mode]
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    h0, c0 = state if isinstance(state, tuple) else (state, state)
    directions = 2 if module.bidirectional else 1
    orders = [Steps.of(sizes, reverse) for reverse in (False, True)[:directions]]
    last: list[tuple[Tensor, Tensor]] = []
    with torch.autocast(rows.device.type, enabled=False):
        rows = rows.to(wide)
        for layer in range(module.num_layers):
            outputs = []
            for steps in orders:
                at = len(last)
                w_ih, w_hh, b_ih, b_hh = _weights(module, at, wide)
                mask = masks[at]
                mask = None if mask is None else mask.to(wide).expand(h0.shape[1], -1)
                out, h, c = recurrence(kind, steps, rows, w_ih, b_ih, w_hh, b_hh, h0[at].to(wide), c0[at].to(wide), mask)
                outputs.append(out)
                last.append((h, c))
            rows = outputs[0] if directions == 1 else torch.cat(outputs, 1)
            if module.dropout and module.training and layer < module.num_layers - 1:
                rows = F.dropout(rows, module.dropout)
    h, c = (torch.stack(states).to(dtype) for states in zip(*last))
    return rows.to(dtype), (h, c) if isinstance(state, tuple) else h


def _weights(module: nn.RNNBase, at: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    w_ih, w_hh, *biases = (weight.to(dtype) for weight in module.all_weights[at])
    return (w_ih, w_hh, biases[0], biases[1]) if biases else (w_ih, w_hh, None, None)


def _fused(
    module: nn.RNNBase, masks: list[Tensor | None], input: Tensor, state: State, sizes: Tensor | None = None
) -> tuple[Tensor, State]:
    """torch's own kernel; a mask shared by the batch is a scale of the columns of `weight_hh`."""
    weights = [
        [w_ih, w_hh if mask is None else w_hh * mask.to(w_hh.dtype), *biases]
        for (w_ih, w_hh, *biases), mask in zip(module.all_weights, masks)
    ]
    flat, run = list(chain.from_iterable(weights)), _FUSED[module.mode]
    how = (module.bias, module.num_layers, module.dropout, module.training, module.bidirectional)
    if sizes is not None:
        output, *last = run(input, sizes, state, flat, *how)  # type: ignore[operator]
    else:
        output, *last = run(input, state, flat, *how, module.batch_first)  # type: ignore[operator]
    return output, (last[0], last[1]) if len(last) == 2 else last[0]


def _each(state: State, change: Callable[[Tensor], Tensor]) -> State:
    return (change(state[0]), change(state[1])) if isinstance(state, tuple) else change(state)


def _first_state(module: nn.RNNBase, data: Tensor, state: State | None, batch: int) -> State:
    if state is not None:
        return state
    zeros = data.new_zeros(connections(module), batch, module.hidden_size)
    return (zeros, zeros) if module.mode == "LSTM" else zeros


def _checked(module: nn.RNNBase, mask: Masks | None, batch: int) -> list[Tensor | None]:
    """One mask (B or 1, H) or None for every recurrent connection."""
    count, size = connections(module), module.hidden_size
    if mask is None:
        return [None] * count
    if (isinstance(mask, Tensor) and mask.dim() != 3) or len(mask) != count:
        shape = tuple(mask.shape) if isinstance(mask, Tensor) else f"{len(mask)} masks"
        raise ValueError(f"mask must have shape ({count}, {batch} or 1, {size}): one per layer and direction; got {shape}")
    for one in mask:
        if one is not None and tuple(one.shape) not in ((batch, size), (1, size)):
            raise ValueError(
                f"mask must have shape ({count}, {batch} or 1, {size}): a row per example or one for all; got {tuple(one.shape)} "
                "for one connection"
            )
    return list(mask)
