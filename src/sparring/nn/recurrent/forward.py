"""Run any torch recurrent module with a mask on its recurrent connection, using the module's own parameters."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence

from .function import recurrence
from .projection import shared_projection
from .steps import Steps

Masks = Tensor | Sequence[Tensor | None]
State = Tensor | tuple[Tensor, Tensor]
_FUSED = {"LSTM": torch.lstm, "GRU": torch.gru, "RNN_TANH": torch.rnn_tanh, "RNN_RELU": torch.rnn_relu}
_KINDS = {"LSTM": "lstm", "GRU": "gru", "RNN_TANH": "tanh", "RNN_RELU": "relu"}


def connections(module: nn.RNNBase) -> list[str]:
    """Names of a module's recurrent connections, one per layer and direction, in the order of torch's states.

    >>> connections(nn.LSTM(3, 4, num_layers=2, bidirectional=True))
    ['l0', 'l0_reverse', 'l1', 'l1_reverse']
    """
    ways = ("", "_reverse") if module.bidirectional else ("",)
    return [f"l{layer}{way}" for layer in range(module.num_layers) for way in ways]


def refuse_projections(module: nn.RNNBase) -> None:
    if module.proj_size:
        raise ValueError(
            f"{type(module).__name__}(proj_size={module.proj_size}): recurrent masks do not support projections; "
            "use proj_size=0 and a Linear layer after the recurrence"
        )


def masked_forward(
    module: nn.RNNBase,
    input: Tensor | PackedSequence,
    state: State | None = None,
    mask: Masks | None = None,
    weights: Sequence[Tensor | None] | None = None,
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
        weights: a multiplier of `weight_hh` (G*H, H), or None, for each layer and direction (DropConnect).
    """
    refuse_projections(module)
    parameters: list[list[Tensor]] = [list(connection) for connection in module.all_weights]
    for connection, multiplier in zip(parameters, _multipliers(parameters, weights)):
        if multiplier is not None:
            connection[1] = connection[1] * multiplier.to(connection[1].dtype)
    if isinstance(input, Tensor) and 0 in input.shape:
        raise ValueError(f"{type(module).__name__}: an empty batch or sequence has no masked states")
    network = _Network(module, parameters)
    if isinstance(input, PackedSequence):
        return network.packed(input, state, mask)
    if input.dim() not in (2, 3):
        raise ValueError(f"{type(module).__name__}: input must have 2 or 3 dimensions, got shape {tuple(input.shape)}")
    if input.dim() == 3:
        return network.batched(input, state, mask)
    side = 0 if module.batch_first else 1
    state = None if state is None else _each(state, lambda s: s.unsqueeze(1))
    output, last = network.batched(input.unsqueeze(side), state, mask)
    return output.squeeze(side), _each(last, lambda s: s.squeeze(1))


@dataclass(frozen=True)
class _Network:
    """A recurrent module and the parameters to run it with: [w_ih, w_hh, b_ih, b_hh] per connection."""

    module: nn.RNNBase
    parameters: list[list[Tensor]]

    def batched(self, input: Tensor, state: State | None, mask: Masks | None) -> tuple[Tensor, State]:
        batch_first = self.module.batch_first
        batch, length = input.shape[0 if batch_first else 1], input.shape[1 if batch_first else 0]
        state = self._first_state(input, state, batch)
        self.module.check_forward_args(input, state, None)  # type: ignore[arg-type]
        masks = self._checked(mask, batch)
        if all(m is None or m.shape[0] == 1 for m in masks):
            return self._fused(masks, input, state)
        rows = (input.transpose(0, 1) if batch_first else input).reshape(length * batch, -1)
        output, last = self._ours(rows, input, [batch] * length, state, masks)
        output = output.view(length, batch, -1)
        return output.transpose(0, 1) if batch_first else output, last

    def packed(self, input: PackedSequence, state: State | None, mask: Masks | None) -> tuple[PackedSequence, State]:
        data, sizes, order, back = input
        batch = int(sizes[0])
        state = self._first_state(data, state, batch)
        masks = self._checked(mask, batch)
        if order is not None:
            state = _each(state, lambda s: s.index_select(1, order))
            masks = [m.index_select(0, order) if m is not None and m.shape[0] > 1 else m for m in masks]
        self.module.check_forward_args(data, state, sizes)  # type: ignore[arg-type]
        if all(m is None or m.shape[0] == 1 for m in masks):
            output, last = self._fused(masks, data, state, sizes)
        else:
            output, last = self._ours(data, data, sizes.tolist(), state, masks)
        if back is not None:
            last = _each(last, lambda s: s.index_select(1, back))
        return PackedSequence(output, sizes, order, back), last

    def _ours(
        self, rows: Tensor, source: Tensor, sizes: list[int], state: State, masks: list[Tensor | None]
    ) -> tuple[Tensor, State]:
        """Layer by layer, direction by direction, on the flat rows of `source`; at least in float32, also under autocast."""
        module, dtype = self.module, rows.dtype
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        h0, c0 = state if isinstance(state, tuple) else (state, state)
        orders = [Steps.of(sizes), Steps.of(sizes, reverse=True)][: 2 if module.bidirectional else 1]
        last: list[tuple[Tensor, Tensor]] = []
        with torch.autocast(rows.device.type, enabled=False):
            rows = rows.to(wide)
            for layer in range(module.num_layers):
                outputs = []
                for steps in orders:
                    at, mask = len(last), masks[len(last)]
                    w_ih, w_hh, *biases = (weight.to(wide) for weight in self.parameters[at])
                    b_ih, b_hh = biases or (None, None)
                    mask = None if mask is None else mask.to(wide).expand(h0.shape[1], -1)
                    first = h0[at].to(wide), c0[at].to(wide)
                    given: tuple[Tensor, Tensor | None, Tensor | None, Tensor, Tensor | None] = (
                        rows,
                        w_ih,
                        b_ih,
                        w_hh,
                        b_hh,
                    )
                    # Deeper inputs change with the masks below. A weight that is made anew for each pass (widened from half precision,
                    # parametrised) cannot be known by its address: the next one may get the same.
                    if layer == 0 and all(isinstance(tensor, nn.Parameter) for tensor in (w_ih, *biases)):
                        own, folded = (b_hh, None) if module.mode == "GRU" else (None, b_hh)
                        projected = shared_projection(rows, source, w_ih, b_ih, folded)
                        given = given if projected is None else (projected, None, None, w_hh, own)
                    out, h, c = recurrence(_KINDS[module.mode], steps, *given, *first, mask)
                    outputs.append(out)
                    last.append((h, c))
                rows = outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1)
                if module.dropout and module.training and layer < module.num_layers - 1:
                    rows = F.dropout(rows, module.dropout)
        h, c = (torch.stack(states).to(dtype) for states in zip(*last))
        return rows.to(dtype), (h, c) if isinstance(state, tuple) else h

    def _fused(
        self, masks: list[Tensor | None], input: Tensor, state: State, sizes: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """torch's own kernel; a mask shared by the batch is a scale of the columns of `weight_hh`."""
        module = self.module
        weights = [
            [w_ih, w_hh if mask is None else w_hh * mask.to(w_hh.dtype), *biases]
            for (w_ih, w_hh, *biases), mask in zip(self.parameters, masks)
        ]
        flat, run = list(chain.from_iterable(weights)), _FUSED[module.mode]
        how = (module.bias, module.num_layers, module.dropout, module.training, module.bidirectional)
        if sizes is not None:
            output, *last = run(input, sizes, state, flat, *how)  # type: ignore[operator]
        else:
            output, *last = run(input, state, flat, *how, module.batch_first)  # type: ignore[operator]
        return output, (last[0], last[1]) if len(last) == 2 else last[0]

    def _first_state(self, data: Tensor, state: State | None, batch: int) -> State:
        if state is not None:
            return state
        zeros = data.new_zeros(len(self.parameters), batch, self.module.hidden_size)
        return (zeros, zeros) if self.module.mode == "LSTM" else zeros

    def _checked(self, mask: Masks | None, batch: int) -> list[Tensor | None]:
        """One mask (B or 1, H) or None for every recurrent connection."""
        count, size = len(self.parameters), self.module.hidden_size
        if mask is None:
            return [None] * count
        wanted = f"mask must have shape ({count}, {batch} or 1, {size})"
        if (isinstance(mask, Tensor) and mask.dim() != 3) or len(mask) != count:
            shape = tuple(mask.shape) if isinstance(mask, Tensor) else f"{len(mask)} masks"
            raise ValueError(f"{wanted}: one per layer and direction; got {shape}")
        for one in mask:
            if one is not None and tuple(one.shape) not in ((batch, size), (1, size)):
                raise ValueError(
                    f"{wanted}: a row per example or one for all; got {tuple(one.shape)} for one connection"
                )
        return list(mask)


def _multipliers(parameters: list[list[Tensor]], weights: Sequence[Tensor | None] | None) -> Sequence[Tensor | None]:
    """One multiplier of `weight_hh`, or None, for every recurrent connection."""
    given = [None] * len(parameters) if weights is None else list(weights)
    shape = tuple(parameters[0][1].shape)
    if len(given) != len(parameters) or any(one is not None and tuple(one.shape) != shape for one in given):
        seen = ", ".join("None" if one is None else str(tuple(one.shape)) for one in given)
        raise ValueError(
            f"weights must be {len(parameters)} tensors of shape {shape} or None, one per layer and direction; got {seen}"
        )
    return given


def _each(state: State, change: Callable[[Tensor], Tensor]) -> State:
    return (change(state[0]), change(state[1])) if isinstance(state, tuple) else change(state)
