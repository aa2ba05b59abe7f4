"""Layers that count examples in dimension 1: known kinds, and everything inside them."""

from collections.abc import Iterator
from weakref import WeakSet

from torch import nn

_KNOWN: "WeakSet[nn.Module]" = WeakSet()
# Hugging Face models that turn their input round at the door, and back on the way out: what lies inside is time-major.
_TURNING = ("XLNetModel",)


def note_time_major(model: nn.Module) -> None:
    """Remember which modules of a model are time-major; `batch_dim_of` knows them from then on."""
    for module in model.modules():
        if _is_time_major(module):
            _KNOWN.update(module.modules())
        elif any(kind.__name__ in _TURNING for kind in type(module).__mro__):
            _KNOWN.update(_inside(module))


def batch_dim_of(module: nn.Module, index: int | str = 0) -> int:
    """The dimension of a module's output (its entry `index`) that counts the examples.

    >>> batch_dim_of(nn.LSTM(2, 3)), batch_dim_of(nn.GRU(2, 3, batch_first=True)), batch_dim_of(nn.GRU(2, 3, batch_first=True), 1)
    (1, 0, 1)
    """
    if isinstance(module, nn.RNNBase):
        return 1 if index else int(not module.batch_first)  # a last state is (layers, B, H) either way
    if isinstance(module, nn.MultiheadAttention) and index:
        return 0  # attention weights
    return int(module in _KNOWN or _is_time_major(module))


def _is_time_major(module: nn.Module) -> bool:
    if isinstance(module, nn.RNNBase | nn.MultiheadAttention | nn.Transformer):
        return not module.batch_first
    if isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
        return not module.self_attn.batch_first
    stack = isinstance(module, nn.TransformerEncoder | nn.TransformerDecoder)
    return stack and any(map(_is_time_major, module.layers.children()))  # type: ignore[union-attr]


def _inside(module: nn.Module) -> Iterator[nn.Module]:
    return (child for child in module.modules() if child is not module)
