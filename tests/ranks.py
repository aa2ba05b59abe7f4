"""Several processes of one machine (gloo), and noise that does not depend on how many there are."""

import socket
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

SHARE = 13  # examples of a process: no scene has another dimension of this length


def on_ranks(worker: Callable[..., Any], world: int, folder: Path, *arguments: Any) -> list[Any]:
    """What `worker(rank, world, *arguments)` returns in each of `world` processes."""
    folder.mkdir(parents=True, exist_ok=True)
    mp.start_processes(_begin, (worker, world, str(folder), arguments), nprocs=world, start_method="spawn")
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(world)]


def _begin(rank: int, worker: Callable[..., Any], world: int, folder: str, arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    meeting, patience = (
        f"file://{folder}/meeting",
        timedelta(minutes=5),
    )  # ranks that wait for each other end as an error
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world, timeout=patience)
    try:
        torch.save(worker(rank, world, *arguments), Path(folder) / f"{rank}.pt")
        dist.barrier()
    finally:
        dist.destroy_process_group()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return int(found.getsockname()[1])


def rows(tree: Any, share: slice) -> Any:
    """The examples of a share from a batch of any structure."""
    if isinstance(tree, Tensor):
        return tree[share]
    if isinstance(tree, dict):
        return {key: rows(value, share) for key, value in tree.items()}
    return tuple(rows(value, share) for value in tree) if isinstance(tree, tuple) else tree


def shares(sizes: Sequence[int]) -> list[slice]:
    """Which examples each process has."""
    ends = torch.tensor(sizes).cumsum(0).tolist()
    return [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]


_aten = torch.ops.aten
_SHAPED = {_aten.rand.default, _aten.randn.default, _aten.randint.default, _aten.randint.low}
_LIKE = {_aten.rand_like.default, _aten.randn_like.default, _aten.bernoulli.default, _aten.bernoulli.p}
_IN_PLACE = {
    _aten.bernoulli_.float,
    _aten.bernoulli_.Tensor,
    _aten.uniform_.default,
    _aten.normal_.default,
    _aten.exponential_.default,
}
_OTHERS = {_aten.randperm.default, _aten.random_.default, _aten.multinomial.default, _aten.native_dropout.default}


class WholeBatchNoise(TorchDispatchMode):
    """Random numbers are drawn for the examples of all processes, and each keeps those of its own.

    A tensor of noise belongs to the examples if one of its dimensions is as long as the process's share.
    """

    def __init__(self, share: slice, total: int) -> None:
        super().__init__()
        self.share, self.total, self.size = share, total, share.stop - share.start

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function in _SHAPED:
            index = next(i for i, a in enumerate(args) if isinstance(a, list | tuple))
            drawn = self._drawn(list(args[index]), lambda w: function(*args[:index], w, *args[index + 1 :], **kwargs))
            return function(*args, **kwargs) if drawn is None else drawn
        if function in _LIKE or function in _IN_PLACE:
            like = args[0]
            drawn = self._drawn(list(like.shape), lambda w: function(*(self._wide(a, w) for a in args), **kwargs))
            if drawn is None:
                return function(*args, **kwargs)
            return like.copy_(drawn) if function in _IN_PLACE else drawn
        assert function not in _OTHERS or not self._dims(getattr(args[0], "shape", ())), f"{function} draws by example"
        return function(*args, **kwargs)

    def _dims(self, shape: Sequence[int]) -> list[int]:
        return [i for i, length in enumerate(shape) if length == self.size]

    def _drawn(self, shape: list[int], draw: Callable[[Any], Tensor]) -> Tensor | None:
        where = self._dims(shape)
        if not where:
            return None
        shape[where[0]] = self.total
        return draw(shape)[(slice(None),) * where[0] + (self.share,)].clone()

    def _wide(self, like: Any, shape: list[int]) -> Any:
        """Of the whole batch's shape; rates where this process's examples are, which is all that a Bernoulli draw reads."""
        if not isinstance(like, Tensor):
            return like
        wide = torch.full(shape, 0.5, dtype=like.dtype)
        where = next(
            i for i, (a, b) in enumerate(zip(shape, like.shape, strict=True)) if (a, b) == (self.total, self.size)
        )
        wide[(slice(None),) * where + (self.share,)] = like.detach()
        return wide
