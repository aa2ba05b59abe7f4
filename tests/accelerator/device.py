"""A pretended accelerator: PyTorch's PrivateUse1 from Python, for machines without a real one.

Its tensors lie in ordinary memory and every kernel is the CPU's, so values must equal the CPU's. All else is as on a real device:
tensors say `pretend:0`, a kernel refuses operands from two devices, random numbers come from a generator of its own, and what would
make the host wait for the device is counted, with the line that asked for it.

Pure Python: a DLPack capsule whose device field is rewritten turns a CPU tensor into one of the device and back, both over the same
memory, and one fallback for the dispatch key runs each operation on the CPU's side. Views stay true views of their storage.
"""

import ctypes
import sys
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
from torch.utils.dlpack import from_dlpack, to_dlpack

from accelerator.cells import CELLS

NAME = "pretend"
ON_CPU, ON_DEVICE = 1, 12  # DLPack's kDLCPU and kDLExtDev
CPU_KERNEL = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)

WAITS = {  # the host needs a number or a shape from the device
    "_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique", "_unique2", "unique_dim", "unique_consecutive",
    "bincount", "repeat_interleave", "is_set_to",
}  # fmt: skip
MASKED = {"index.Tensor", "index_put", "index_put_", "_index_put_impl_"}  # wait where an index is a mask
ALLOCATES = {"empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided"}
MIXES = {"_copy_from", "copy_", "_copy_from_and_resize", "set_"}  # take tensors of two devices, as on any accelerator


@dataclass
class Count:
    """What happened on the device: how often the host had to wait, and how many kernels were launched, by name."""

    waits: list[str] = field(default_factory=list)
    launches: Counter[str] = field(default_factory=Counter)


class Generator(torch.Generator):
    """What `torch.Generator` makes while the device is there: also generators of the device, which Python cannot make otherwise."""

    def __new__(cls, device: Any = "cpu") -> Any:
        if str(device).partition(":")[0] != NAME:
            return _GENERATOR(device)
        made = super().__new__(cls, "cpu")
        _OURS.add(made._cdata)
        return made

    @property
    def device(self) -> torch.device:
        return torch.device(NAME, 0)


_GENERATOR = torch.Generator
_OURS: set[int] = set()  # an operation sees a generator through another Python object, but at the same address


class Event:
    """A mark in the device's queue. Work before it ends when somebody looks, never earlier."""

    def __init__(self, device: "Device") -> None:
        self.device = device

    def record(self) -> None:
        pass

    def query(self) -> bool:
        self.device.arrive()
        return True

    def synchronize(self) -> None:
        self.device.wait("synchronize")


class Device:
    """The device module, `torch.pretend`: what torch and callers ask of any accelerator."""

    def __init__(self) -> None:
        self.plugged = False
        self.generator = Generator(NAME)
        self.counts: list[Count] = []
        self.pending: list[tuple[Tensor, Tensor]] = []  # copies to the host that nobody has waited for
        self.Event = partial(Event, self)

    def is_available(self) -> bool:
        return self.plugged

    def is_initialized(self) -> bool:
        return True

    def device_count(self) -> int:
        return int(self.plugged)

    def current_device(self) -> int:
        return 0

    def set_device(self, device: Any) -> None:
        pass

    def synchronize(self, device: Any = None) -> None:
        self.wait("synchronize")

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        self.generator.manual_seed(seed)

    manual_seed = manual_seed_all

    def get_rng_state(self, device: Any = NAME) -> Tensor:
        return self.generator.get_state()

    def set_rng_state(self, state: Tensor, device: Any = NAME) -> None:
        self.generator.set_state(state)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def wait(self, what: str) -> None:
        self.arrive()
        for count in self.counts:
            count.waits.append(f"{what} at {_asked_at()}")

    def arrive(self) -> None:
        """Let the copies in the background end."""
        while self.pending:
            source, target = self.pending.pop(0)
            target.copy_(source)

    def launch(self, what: str) -> None:
        for count in self.counts:
            count.launches[what] += 1


device = Device()


def _asked_at() -> str:
    """The innermost line outside torch and this file."""
    for frame, line in traceback.walk_stack(sys._getframe(1)):
        name = frame.f_code.co_filename
        if name != __file__ and f"{'torch'}/" not in name.replace("\\", "/") and "contextlib" not in name:
            return f"{name.rpartition('sparring/')[2]}:{line}"
    return "?"


_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def _relabelled(tensor: Tensor, kind: int) -> Tensor:
    """The same memory as a tensor of another kind of device."""
    capsule = to_dlpack(tensor.detach() if tensor.requires_grad else tensor)
    ctypes.c_int32.from_address(_pointer(capsule, b"dltensor") + ctypes.sizeof(ctypes.c_void_p)).value = kind
    return from_dlpack(capsule)


def _is_here(x: Any) -> bool:
    return isinstance(x, Tensor) and x.device.type == NAME


class _Operands:
    """The arguments of one kernel on the CPU's side; knows which of its results are arguments."""

    def __init__(self, op: Any, mixes: bool) -> None:
        self.op, self.mixes = op, mixes
        self.given: dict[int, Tensor] = {}
        self.alive: list[Tensor] = []

    def down(self, x: Any) -> Any:
        if isinstance(x, Tensor):
            if x.device.type == NAME:
                twin = _relabelled(x, ON_CPU)
                self.given[id(twin)] = x
                self.alive.append(twin)
                return twin
            if x.dim() and not self.mixes:
                raise RuntimeError(
                    f"Expected all tensors to be on the same device, but found at least two devices, {NAME}:0 and {x.device}! ({self.op})"
                )
            return x
        if isinstance(x, torch.device):
            return torch.device("cpu") if x.type == NAME else x
        if isinstance(x, list | tuple):
            return [self.down(y) for y in x]
        return x

    def up(self, x: Any) -> Any:
        if isinstance(x, Tensor):
            return self.given[id(x)] if id(x) in self.given else _relabelled(x, ON_DEVICE)
        if isinstance(x, list | tuple):
            return type(x)(self.up(y) for y in x)
        return x


def run(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Any operation with a tensor of the device among its operands, or that makes one."""
    name = _plain_name(op)
    if _is_view(op):
        return op.redispatch(CPU_KERNEL, *args, **kwargs)
    if name in MIXES:
        return _copy(*args, **kwargs)
    if name in WAITS or (name in MASKED and _has_mask(name, args)):
        device.wait(name)
    elif name not in ALLOCATES:
        device.launch(str(op))
    if name in MASKED and _is_here(args[0]):
        args = (args[0], [_brought(x) for x in args[1]], *args[2:])
    operands = _Operands(op, False)
    args, kwargs = [operands.down(x) for x in args], {k: operands.down(v) for k, v in kwargs.items()}
    known = any(isinstance(x, Tensor) and x.is_floating_point() for x in args)
    args = [_as_tensor(x, known) if k in _tensors_of(op) else x for k, x in enumerate(args)]
    if name in KERNELS:
        return operands.up(KERNELS[name](*args, **kwargs))
    if _is_resized(kwargs.get("out")):
        return _write_out(op, operands, args, kwargs)
    with _drawing(op, args, kwargs):
        return operands.up(op(*args, **kwargs))


def _brought(index: Any) -> Any:
    """As on CUDA, indices may lie on the host; bringing them waits."""
    if not isinstance(index, Tensor) or _is_here(index):
        return index
    device.wait("indices from the host")
    return _relabelled(index, ON_DEVICE)


def _as_tensor(x: Any, floating: bool) -> Any:
    """A number that torch made a tensor reaches Python as a number; beside integers alone it means torch's default dtype."""
    if isinstance(x, int | float):
        wide = torch.float64 if floating else torch.get_default_dtype()
        return torch.scalar_tensor(x, dtype=torch.int64 if isinstance(x, int) else wide)
    return x


def _is_resized(out: Any) -> bool:
    return isinstance(out, Tensor) and out.numel() == 0


def _write_out(op: Any, operands: _Operands, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Torch's default kernels hand over an empty `out` to be resized; memory of ours cannot grow, so it is exchanged."""
    out = operands.given[id(kwargs["out"])]
    result = op(*args, **{**kwargs, "out": torch.empty_like(kwargs["out"])})
    out.data = _relabelled(result, ON_DEVICE)
    return out


def _copy(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    """Between devices or on one; to or from the host it waits, unless it was told not to."""
    if source.device == target.device:
        device.launch("copy")
    elif non_blocking and _is_here(source):
        operands = _Operands("copy", True)
        target.fill_(torch.iinfo(torch.uint8).max)  # whoever reads it too early shall notice
        device.pending.append((operands.down(source).clone(), target))
        return target
    elif not non_blocking:
        device.wait("copy to the host" if _is_here(source) else "copy from the host")
    operands = _Operands("copy", True)
    operands.down(target).copy_(operands.down(source))
    return target


@cache
def _plain_name(op: Any) -> str:
    full = op._schema.name.removeprefix("aten::")
    return "index.Tensor" if full == "index" else full


@cache
def _tensors_of(op: Any) -> tuple[int, ...]:
    """At which places the operation takes a tensor."""
    return tuple(k for k, argument in enumerate(op._schema.arguments) if str(argument.type) == "Tensor")


@cache
def _is_view(op: Any) -> bool:
    returns = op._schema.returns
    alias = returns[0].alias_info if returns else None
    return alias is not None and (not alias.is_write or torch.Tag.inplace_view in op.tags)


def _has_mask(name: str, args: Sequence[Any]) -> bool:
    """Whether an index is a mask, whose entries must be counted first; filling with one number needs no count."""
    masks = [x for x in args[1] if isinstance(x, Tensor) and x.dtype in (torch.bool, torch.uint8)]
    return bool(masks) and not (name != "index.Tensor" and args[2].numel() == 1)


@contextmanager
def _drawing(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[None]:
    """Random kernels without a generator of their own draw from the device's."""
    given = [x for x in (*args, *kwargs.values()) if isinstance(x, _GENERATOR)]
    if given and given[0]._cdata not in _OURS:
        raise RuntimeError(f"Expected a '{NAME}' device type for generator but found 'cpu'")
    if given or device.generator is torch.default_generator or torch.Tag.nondeterministic_seeded not in op.tags:
        yield
        return
    before = torch.get_rng_state()
    torch.set_rng_state(device.generator.get_state())
    try:
        yield
    finally:
        device.generator.set_state(torch.get_rng_state())
        torch.set_rng_state(before)


def _convolution_backward(dy: Tensor, x: Tensor, w: Tensor, *geometry: Any) -> Any:
    channels = w.shape[1] * geometry[5] if geometry[3] else w.shape[0]
    return torch.ops.aten.convolution_backward(dy, x, w, [channels], *geometry)


KERNELS: dict[str, Any] = {
    **CELLS,
    "convolution_overrideable": torch.ops.aten.convolution,
    "convolution_backward_overrideable": _convolution_backward,
    "_fused_sdp_choice": lambda *args, **kwargs: 0,  # attention in plain products
}

_libraries: list[torch.library.Library] = []


@cache
def register() -> None:
    """Tell torch about the device, once a process."""
    _setup_privateuseone_for_python_backend(NAME, backend_module=device, hook=_Hook())
    anything = torch.library.Library("_", "IMPL")
    anything.fallback(run, "PrivateUse1")
    aten = torch.library.Library("aten", "IMPL")
    # Torch has default kernels for these, in terms of others or of an error, which come before a fallback.
    defaults = torch._C._dispatch_get_registrations_for_dispatch_key("CompositeExplicitAutogradNonFunctional")
    for full in {*defaults, "convolution_overrideable", "convolution_backward_overrideable"}:
        packet, _, overload = full.removeprefix("aten::").partition(".")
        op = getattr(getattr(torch.ops.aten, packet), overload or "default")
        aten.impl(op, partial(run, op), "PrivateUse1")
    _libraries.extend((anything, aten))


class _Hook(torch._C._acc.PrivateUse1Hooks):
    def is_available(self) -> bool:
        return device.plugged

    def has_primary_context(self, index: int) -> bool:
        return device.plugged

    def is_built(self) -> bool:
        return True


@contextmanager
def plugged_in() -> Iterator[Device]:
    """The device is there while the block runs."""
    register()
    device.plugged, torch.Generator = True, Generator  # type: ignore[misc]
    try:
        # Device threads are started with the first backward pass of a process, which may have been long ago.
        with torch.autograd.set_multithreading_enabled(False):
            yield device
    finally:
        device.plugged, torch.Generator = False, _GENERATOR  # type: ignore[misc]


@contextmanager
def counting() -> Iterator[Count]:
    """What happens on the device while the block runs."""
    count = Count()
    device.counts.append(count)
    try:
        yield count
    finally:
        device.counts.remove(count)


@contextmanager
def one_generator() -> Iterator[None]:
    """The device draws from the CPU's generator while the block runs, so that a pass draws the same numbers on either."""
    own, device.generator = device.generator, torch.default_generator
    try:
        yield
    finally:
        device.generator = own
