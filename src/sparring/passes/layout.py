"""Where passes must act on a model, looked up once: sites, normalisation layers, fused layers."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm

from ..nn.matching import walk
from ..nn.randomness import ONLY_CPU, accelerated, devices_in
from ..sites.site import Site, Undo


@dataclass(frozen=True)
class Layout:
    """What a model is made of, kept until its modules change: a large model takes long to search.

    Attributes:
        members: every module with its own part of the name.
        moving: what changes its own statistics when it runs in training mode: batch and instance norm, spectral norm.
        fused: whether torch's fused transformer layer may skip inner modules, and with them every site inside.
        matches: the modules of each site.
        children: what each module held when it was looked at.
    """

    members: tuple[tuple[str, nn.Module], ...]
    moving: tuple[object, ...]
    fused: bool
    matches: dict[Site, dict[str, nn.Module]]
    children: tuple[tuple[nn.Module, dict[str, nn.Module | None]], ...]

    @classmethod
    def of(cls, model: nn.Module, sites: Sequence[Site], known: "Layout | None" = None) -> "Layout":
        """Look, unless `known` says the same of the same modules."""
        if known is not None and known.members[0][1] is model and known.holds(sites):
            return known
        members = tuple(walk(model))
        fused = any(isinstance(m, nn.TransformerEncoderLayer | nn.MultiheadAttention) for _, m in members)
        matches = {site: site.modules(model) for site in sites}
        return cls(members, moving_parts(model), fused, matches, tuple((m, dict(m._modules)) for _, m in members))

    def holds(self, sites: Sequence[Site]) -> bool:
        """Whether every module still has the children it had, in their order, and these sites were looked for among them."""
        for module, children in self.children:
            now = module._modules
            if not isinstance(now, dict):  # a scripted module keeps none
                now = dict(now)
            if now != children or (len(now) > 1 and [*now] != [*children]):  # dicts in another order are equal
                return False
        return not sites or self.matches.keys() >= set(sites)

    def devices(self) -> tuple[torch.device, ...]:
        """The CPU and every accelerator that the model uses now: `model.to(...)` may have come since."""
        return devices_in(self.modules) if accelerated() else ONLY_CPU

    @cached_property
    def modules(self) -> tuple[nn.Module, ...]:
        return tuple(module for _, module in self.members)

    @property
    def batch_statistics(self) -> bool:
        """Whether examples of a batch meet in a normalisation layer now."""
        return any(isinstance(m, _BatchNorm) and (m.training or not m.track_running_stats) for m in self.moving)


def moving_parts(model: nn.Module) -> tuple[object, ...]:
    """Everything whose buffers move when it runs in training mode."""
    found: list[object] = []
    for _, module in walk(model):
        if isinstance(module, _BatchNorm | _InstanceNorm | _SpectralNorm):
            found.append(module)
        found.extend(hook for hook in module._forward_pre_hooks.values() if isinstance(hook, SpectralNorm))
    return tuple(found)


class Stillness:
    """Holds statistics still: batch statistics are used as the mode says, but averages and power iterations do not move.

    Args:
        parts: what moves by itself.
        put_back: let batch norm move its averages and put them back at the end. A region that ran so in its forward pass must
            save the same tensors when it is recomputed, the averages among them.
    """

    def __init__(self, parts: Sequence[object], put_back: bool = False) -> None:
        self.parts, self.put_back = parts, put_back
        self.before: list[tuple[object, str, object]] = []
        self.averages: list[tuple[Tensor, Tensor]] = []

    def begin(self) -> None:
        for part in self.parts:
            if isinstance(part, _BatchNorm):
                if part.training and part.track_running_stats:
                    if self.put_back:
                        self.averages.extend((b, b.clone()) for b in part._buffers.values() if b is not None)
                    else:
                        self._set(part, "track_running_stats", False)
            elif isinstance(part, _InstanceNorm):
                if part.training:
                    self._set(part, "momentum", 0.0)
            else:
                self._set(part, "n_power_iterations", 0)

    def end(self) -> None:
        for part, name, value in reversed(self.before):
            setattr(part, name, value)
        for buffer, value in self.averages:
            buffer.data.copy_(value)  # past the version counter: what autograd saved of it has not changed
        self.before.clear()
        self.averages.clear()

    def _set(self, part: object, name: str, value: object) -> None:
        self.before.append((part, name, getattr(part, name)))
        setattr(part, name, value)


@contextmanager
def still_statistics(model: nn.Module) -> Iterator[None]:
    """Nothing that moves when the model runs in training mode moves inside the block."""
    held = Stillness(moving_parts(model))
    held.begin()
    try:
        yield
    finally:
        held.end()


def outside_inference() -> AbstractContextManager[Any]:
    """Outside `torch.inference_mode`, where that is on. Where it is not, entering and leaving it would undo settings of torch's
    engine that others made (`torch.autograd.set_multithreading_enabled`)."""
    return torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext()


def slow_path() -> Undo:
    """torch's fused transformer layer skips its inner modules in evaluation, and with them every site inside: forbid it."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    return lambda: torch.backends.mha.set_fastpath_enabled(enabled)
