"""What each torch layer, function or tensor method stands for among the certificate's operations."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .ops import AveragePool, ChannelAffine, Conv2d, Linear, Mean, Op, Relu, Reshape, Sum

SUPPORTED = (
    "linear, 2-d convolution with zero padding, batch norm in evaluation mode, ReLU, average pooling, addition, "
    "multiplication by a number, flatten/view, mean, and dropout in evaluation mode"
)


class UnsupportedOperation(ValueError):
    """The model does something no bound is known for here."""


def _pair(value: Any) -> tuple[int, int]:
    return (int(value), int(value)) if isinstance(value, int) else (int(value[0]), int(value[1]))


def module_op(module: nn.Module, x: Tensor, name: str) -> Op | None:
    """The operation a torch layer stands for; None when it does nothing."""
    kind = type(module).__name__
    if isinstance(module, nn.Linear):
        return Linear(module.weight.detach(), None if module.bias is None else module.bias.detach())
    if isinstance(module, nn.Conv2d):
        if module.padding_mode != "zeros" or isinstance(module.padding, str):
            raise UnsupportedOperation(
                f"{name} is a convolution with padding {module.padding!r} ({module.padding_mode}); "
                f"only a number of zeros is supported"
            )
        bias = None if module.bias is None else module.bias.detach()
        return Conv2d(
            module.weight.detach(),
            bias,
            _pair(module.stride),
            _pair(module.padding),
            _pair(module.dilation),
            module.groups,
        )
    if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
        if module.running_mean is None or module.running_var is None:
            raise UnsupportedOperation(f"{name} has no running statistics, so it mixes the examples of a batch")
        scale = (module.running_var + module.eps).rsqrt()
        if module.weight is not None:
            scale = scale * module.weight.detach()
        shift = -module.running_mean * scale
        return ChannelAffine(scale, shift if module.bias is None else shift + module.bias.detach())
    if isinstance(module, nn.ReLU):
        return Relu()
    if isinstance(module, nn.AvgPool2d):
        if module.divisor_override is not None:
            raise UnsupportedOperation(f"{name} overrides the pooling divisor; only the plain average is supported")
        stride = module.kernel_size if module.stride is None else module.stride
        return AveragePool(
            _pair(module.kernel_size), _pair(stride), _pair(module.padding), module.ceil_mode, module.count_include_pad
        )
    if isinstance(module, nn.AdaptiveAvgPool2d):
        return _grid(module.output_size)
    if isinstance(module, nn.Flatten):
        return _reshape(x, module(x), name)
    if isinstance(module, nn.Identity):
        return None
    if isinstance(module, nn.modules.dropout._DropoutNd):
        if module.training and module.p > 0:
            raise UnsupportedOperation(f"{name} drops units at random; call model.eval() before certifying")
        return None
    raise UnsupportedOperation(f"{name} is a {kind}; certificates know {SUPPORTED}")


def function_op(
    name: str, function: Any, args: Any, kwargs: Any, values: tuple[Tensor, ...], result: Tensor
) -> Op | None:
    """The operation a function or tensor method stands for; None when it does nothing."""
    x = values[0]
    if (sum_or_product := _arithmetic(name, args, kwargs, values)) is not None:
        return sum_or_product
    if function in (F.relu, torch.relu, Tensor.relu, Tensor.relu_, F.relu_):
        return Relu()
    if name in ("flatten", "view", "reshape", "squeeze"):
        return _reshape(x, result, name)
    if function in (torch.mean, Tensor.mean):
        dims = args[1] if len(args) > 1 else kwargs.get("dim")
        dims = (dims,) if isinstance(dims, int) else tuple(dims or ())
        dims = tuple(d % x.dim() for d in dims)
        if dims and 0 not in dims:
            return Mean(dims, result.dim() == x.dim())
    if name == "adaptive_avg_pool2d":
        size = args[1] if len(args) > 1 else kwargs["output_size"]
        return _grid(size)
    if name == "avg_pool2d":
        return _pool(*args[1:], **kwargs)
    if name.startswith("dropout") and not kwargs.get("training", args[2] if len(args) > 2 else True):
        return None
    if name in ("contiguous", "detach"):
        return None
    raise UnsupportedOperation(
        f"{name}() on a tensor of shape {tuple(x.shape)} is not supported; certificates know {SUPPORTED}"
    )


def _arithmetic(name: str, args: Any, kwargs: Any, values: tuple[Tensor, ...]) -> Op | None:
    """Sums and differences of two tensors of one shape, and a tensor with a number; None for anything else."""
    x, numbers = values[0], [float(a) for a in args if isinstance(a, int | float)]
    alike = len(values) == 2 and values[0].shape == values[1].shape
    if name in ("add", "iadd", "add_") and not kwargs:
        if alike:
            return Sum((1.0, 1.0))
        if len(values) == 1 and numbers:
            return _factor(x, 1.0, numbers[0])
    if name == "sub" and not kwargs:
        if alike:
            return Sum((1.0, -1.0))
        if numbers and isinstance(args[0], Tensor):
            return _factor(x, 1.0, -numbers[0])
    if name == "mul" and len(values) == 1 and numbers:
        return _factor(x, numbers[0], 0.0)
    if name in ("truediv", "div") and isinstance(args[0], Tensor) and numbers and not kwargs:
        return _factor(x, 1 / numbers[0], 0.0)
    return None


def _pool(
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> AveragePool:
    if divisor_override is not None:
        raise UnsupportedOperation("avg_pool2d() overrides the pooling divisor; only the plain average is supported")
    return AveragePool(
        _pair(kernel_size),
        _pair(kernel_size if stride is None else stride),
        _pair(padding),
        ceil_mode,
        count_include_pad,
    )


def _grid(size: Any) -> AveragePool:
    return AveragePool(grid=(size, size) if isinstance(size, int) else (size[0], size[1]))


def _factor(x: Tensor, scale: float, shift: float) -> ChannelAffine:
    channels = x.shape[1] if x.dim() > 1 else 1
    return ChannelAffine(x.new_full((channels,), scale), x.new_full((channels,), shift))


def _reshape(x: Tensor, result: Tensor, name: str) -> Reshape:
    if len(result) != len(x):
        raise UnsupportedOperation(f"{name} changes the batch dimension from {len(x)} to {len(result)}")
    return Reshape(tuple(result.shape[1:]))
