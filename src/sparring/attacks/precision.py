"""Attacks on models of sixteen bits: the search is in single precision, what the model sees and what is returned is not."""

import torch
from torch import Tensor


def single(x: Tensor) -> Tensor:
    """`x` itself, or a float32 copy where it has sixteen bits."""
    return x.float() if x.dtype.itemsize < 4 else x


def placed(inputs: Tensor, delta: Tensor) -> Tensor:
    """`inputs + delta` in the precision of the inputs.

    Sixteen bits would round past the radius (0.3 to 0.3027), so there entries are rounded towards the inputs: no entry moves
    further than `delta` says, and the point stays in every ball and box that `inputs + delta` is in. Gradients pass as if
    nothing were rounded.

    Example:
        >>> inputs = torch.tensor([1.0], dtype=torch.bfloat16)
        >>> (placed(inputs, torch.tensor([0.3])) - inputs).item()  # plain addition gives 1.3046875
        0.296875
    """
    if inputs.dtype.itemsize >= 4:
        return inputs + delta
    rounded = (inputs.float() + delta).to(inputs.dtype)
    with torch.no_grad():
        beyond = (rounded.double() - inputs.double()).abs() > delta.double().abs()
        back = torch.where(beyond, torch.nextafter(rounded, inputs) - rounded, 0)
    return rounded + back


def returned(inputs: Tensor, found: Tensor) -> Tensor:
    """A point found in another precision, in that of the inputs; sixteen bits are rounded towards the inputs."""
    return placed(inputs, found.to(inputs.device).double() - inputs.double()).to(inputs.dtype)
