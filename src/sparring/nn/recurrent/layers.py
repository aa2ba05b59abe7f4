"""Recurrent layers that take a mask on their recurrent connection."""

from typing import Any

from torch import nn

from .forward import Masks, masked_forward, refuse_projections


class LSTM(nn.LSTM):
    """`torch.nn.LSTM` with a time-invariant mask on the recurrent connection: same arguments, same `state_dict`.

    >>> import torch
    >>> lstm, x = LSTM(3, 4, batch_first=True), torch.randn(2, 7, 3)
    >>> output, (h, c) = lstm(x, mask=torch.bernoulli(torch.full((1, 2, 4), 0.9)) / 0.9)
    >>> output.shape
    torch.Size([2, 7, 4])

    The mask multiplies `h_{t-1}` only where it enters the recurrent product (Gal and Ghahramani 2016; Park et al.,
    eq. 1). Call the layer with `mask=` of shape (layers * directions, B or 1, H): a row per example runs our kernel, one
    row for the batch or no mask runs torch's fused kernel. Projections (`proj_size`) are refused.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        refuse_projections(self)

    def forward(self, input: Any, hx: Any = None, mask: Masks | None = None) -> Any:
        return super().forward(input, hx) if mask is None else masked_forward(self, input, hx, mask)


class GRU(nn.GRU):
    """`torch.nn.GRU` with a time-invariant mask on the recurrent connection; see `LSTM`.

    >>> import torch
    >>> gru = GRU(3, 4)
    >>> output, h = gru(torch.randn(7, 2, 3), mask=torch.ones(1, 2, 4))
    >>> output.shape
    torch.Size([7, 2, 4])

    The `h_{t-1}` that the update gate carries over is not masked, only the one in the recurrent product.
    """

    def forward(self, input: Any, hx: Any = None, mask: Masks | None = None) -> Any:
        return super().forward(input, hx) if mask is None else masked_forward(self, input, hx, mask)


class RNN(nn.RNN):
    """`torch.nn.RNN` (tanh or ReLU) with a time-invariant mask on the recurrent connection; see `LSTM`.

    >>> import torch
    >>> rnn = RNN(3, 4, nonlinearity="relu", bidirectional=True)
    >>> output, h = rnn(torch.randn(7, 2, 3), mask=torch.ones(2, 2, 4))
    >>> output.shape
    torch.Size([7, 2, 8])
    """

    def forward(self, input: Any, hx: Any = None, mask: Masks | None = None) -> Any:
        return super().forward(input, hx) if mask is None else masked_forward(self, input, hx, mask)
