"""DropConnect on the recurrent weights of an RNN (AWD-LSTM), without touching the parameters."""

from typing import Any

import torch
from torch import Tensor, nn

from ..recurrent.forward import connections, masked_forward, refuse_projections


class WeightDrop(nn.Module):
    """An RNN whose recurrent weights are dropped at random in training: one mask of `weight_hh` per call.

    >>> lstm = WeightDrop(nn.LSTM(3, 4), drop=0.5)
    >>> output, (h, c) = lstm(torch.randn(5, 2, 3))
    >>> list(lstm.state_dict())[:2]
    ['module.weight_ih_l0', 'module.weight_hh_l0']

    The multiplier enters the product as `weight_hh * mask`; the parameter itself stays what it is, so optimisers, saving
    and sharing see nothing unusual, and evaluation is the wrapped module.

    Args:
        module: an `nn.LSTM`, `nn.GRU` or `nn.RNN`, ours or torch's.
        drop: drop rate in [0, 1); kept weights are divided by 1 - drop.

    Paper: Merity, Keskar and Socher, Regularizing and Optimizing LSTM Language Models (2018), section 2.
    """

    def __init__(self, module: nn.RNNBase, drop: float = 0.5) -> None:
        super().__init__()
        if not isinstance(module, nn.RNNBase):
            raise TypeError(f"WeightDrop wraps an nn.LSTM, nn.GRU or nn.RNN, got {type(module).__name__}")
        if not 0 <= drop < 1:
            raise ValueError(f"WeightDrop(drop={drop}): a drop rate lies in [0, 1)")
        refuse_projections(module)
        self.module = module
        self.drop = drop

    def draw_weights(self) -> list[Tensor]:
        """A multiplier of every `weight_hh` (G*H, H): random in training, ones in evaluation."""
        rate = self.drop if self.training else 0.0
        recurrent = [getattr(self.module, f"weight_hh_{name}") for name in connections(self.module)]
        return [nn.functional.dropout(torch.ones_like(weight), rate, self.training) for weight in recurrent]

    def forward(self, input: Any, hx: Any = None, mask: Any = None, weights: list[Tensor] | None = None) -> Any:
        """As the wrapped module; `mask` as in `sparring.nn.LSTM`, `weights` replaces the random multipliers."""
        if weights is None:
            weights = self.draw_weights() if self.training and self.drop else None
        return masked_forward(self.module, input, hx, mask, weights)

    def extra_repr(self) -> str:
        return f"drop={self.drop}"
