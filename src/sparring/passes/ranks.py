"""Several processes: numbers they share, and parameters of which each holds a part (FSDP2, tensor parallelism)."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..nn.matching import walk


def is_sharded(parameter: Tensor) -> bool:
    """Whether only a part of the parameter lives here."""
    return type(parameter).__name__ == "DTensor" or hasattr(parameter, "_spec")


def among_ranks() -> bool:
    """Whether several processes train together."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def mean_over_ranks(value: Tensor) -> Tensor:
    """The mean of a number over all processes; the number itself where there is one."""
    if not among_ranks():
        return value
    value = value.clone()
    dist.all_reduce(value)
    return value / dist.get_world_size()


def holds_parts(model: nn.Module) -> bool:
    """Whether each process keeps a part of the model's parameters only, between its passes at least."""
    if not among_ranks():
        return False
    return any(map(is_sharded, model.parameters())) or any(is_managed(module) for _, module in walk(model))


def shard_again(model: nn.Module) -> list[nn.Module]:
    """Let `fully_shard` drop the parameters it has gathered, and return the modules it manages.

    Afterwards the parameters of `model` are the parts that the optimiser moves. What a pass has gathered is gathered again when its
    backward pass comes.
    """
    if not among_ranks():
        return []
    managed = [module for _, module in walk(model) if is_managed(module)]
    for module in managed:
        module.reshard()  # type: ignore[operator]
    return managed


def is_managed(module: nn.Module) -> bool:
    """Whether `fully_shard` was called on this very module."""
    from torch.distributed.fsdp import FSDPModule  # slow to import, and only needed among several processes

    return isinstance(module, FSDPModule)


def check_precision(model: nn.Module, outputs: Tensor, name: str) -> None:
    """Finite differences over sharded parameters compare passes of the model: half precision would leave noise of them."""
    policies = [m._get_fsdp_state()._mp_policy for _, m in walk(model) if is_managed(m)]  # type: ignore[operator]
    low = any(policy.param_dtype in (torch.float16, torch.bfloat16) for policy in policies)
    if low or torch.is_autocast_enabled(outputs.device.type):
        raise RuntimeError(
            f'{name}: unroll="finite_difference" over sharded parameters needs full precision, without autocast and without '
            "MixedPrecisionPolicy(param_dtype=...): use DistributedDataParallel(objective), or unroll=False"
        )


@contextmanager
def other_values(model: nn.Module, parameters: Sequence[Tensor], values: Sequence[Tensor]) -> Iterator[None]:
    """Put other values into sharded parameters for the length of the block."""
    shard_again(model)
    parts = [local(parameter) for parameter in parameters]
    kept = [part.clone() for part in parts]
    torch._foreach_copy_(parts, [local(value) for value in values])
    try:
        yield
    finally:
        shard_again(model)
        torch._foreach_copy_(parts, kept)


def local(tensor: Tensor) -> Tensor:
    """The part that lives here, without its graph."""
    tensor = tensor.detach()
    return tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]
