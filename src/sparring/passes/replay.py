"""Prefix replay: what ran before a site need not run again.

A perturbation cannot change what came before its site. While the clean pass runs, a `Tape` notes the outermost modules that
finished before the first of its sites fired, with the random state each left behind. `replaying` puts those outputs in
place of the modules' work in later passes of the same step. Exact by construction:

- a module that is used again after the site runs for real (its recorded calls are counted and used up),
- an output that was changed in place since it was recorded is not used: that module runs again,
- an output that holds anything but tensors and plain values is not recorded,
- a module under which somebody else's hooks sit runs again, so that they see every call (hidden states that a model collects),
- the random state after a replayed module is the one it left in the clean pass, so later noise is the same.

Which modules these are is learned in the first step (`Prefix`); later steps watch those alone.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from ..nn.randomness import RandomState, current
from ..sites.site import patch_forward
from .recomputation import inside_checkpoint

_PLAIN = (Tensor, int, float, bool, str, type(None), torch.Size, torch.dtype, torch.device)
_HARMLESS = (__package__.partition(".")[0] + ".", "torch.nn.utils.")


@dataclass
class Entry:
    """One finished call: the module, what it returned, the tensors' versions then, and the random state after it."""

    module: nn.Module
    output: Any
    versions: tuple[int, ...]
    noise: RandomState

    def intact(self) -> bool:
        return self.versions == _versions(self.output)

    def result(self, attached: bool, noise: bool) -> Any:
        if noise:
            self.noise.restore()
        if attached:
            return self.output
        if isinstance(self.output, Tensor):
            return self.output.detach()
        return tree_map(lambda x: x.detach() if isinstance(x, Tensor) else x, self.output)


@dataclass
class Prefix:
    """What an objective has learned about the modules before a group of sites.

    Attributes:
        modules: the outermost ones that finish before the first site; None before the first step.
    """

    modules: tuple[nn.Module, ...] | None = None

    @property
    def empty(self) -> bool:
        return self.modules == ()


@dataclass
class Tape:
    """Calls that finished before any of `sites` fired, outermost modules only, in order."""

    sites: frozenset[Any]
    prefix: Prefix = field(default_factory=Prefix)
    entries: list[Entry] = field(default_factory=list)
    open: bool = True
    began: RandomState | None = None
    noise_free: bool = False

    def close(self) -> None:
        """Stop at the first site; note whether anything random happened before it, and leave out what others watch."""
        if not self.open:
            return
        self.open = False
        if self.began is not None:
            now = current(tuple(self.began.states))
            self.noise_free = all(torch.equal(now.states[d], state) for d, state in self.began.states.items())
        self.prefix.modules = tuple(dict.fromkeys(entry.module for entry in self.entries))
        watched = {module for module in self.prefix.modules if _is_watched(module)}
        if watched:
            self.entries = [entry for entry in self.entries if entry.module not in watched]


def _is_watched(module: nn.Module) -> bool:
    """Whether anybody else's hook sits on a module below this one, or has replaced its forward."""
    for child in module.modules():
        hooks: Iterable[Any] = (*child._forward_hooks.values(), *child._forward_pre_hooks.values())
        patch = child.__dict__.get("forward")
        for function in (*hooks, *(() if patch is None else (patch,))):
            home = getattr(function, "__module__", None) or type(function).__module__
            if not f"{home}.".startswith(_HARMLESS):
                return True
    return False


def _leaves(output: Any) -> Sequence[Any]:
    return (output,) if isinstance(output, Tensor) else tree_leaves(output)  # most modules return one tensor


def _versions(output: Any) -> tuple[int, ...]:
    return tuple(x._version for x in _leaves(output) if isinstance(x, Tensor))


def is_compiled(module: nn.Module) -> bool:
    """Whether `torch.compile` owns this module's calls."""
    return type(module).__name__ == "OptimizedModule" or module._compiled_call_impl is not None


def eager_modules(model: nn.Module) -> Iterator[nn.Module]:
    """Every module below `model` that runs as plain Python; compiled ones, with all they contain, are left out."""
    seen: set[nn.Module] = set()
    waiting = [model]
    while waiting:
        module = waiting.pop()
        if module not in seen and not is_compiled(module) and not isinstance(module, torch.jit.ScriptModule):
            seen.add(module)
            waiting.extend(child for child in module._modules.values() if child is not None)
            yield module


@contextmanager
def recording(model: nn.Module, tapes: Sequence[Tape], devices: tuple[torch.device, ...]) -> Iterator[None]:
    """Let the tapes note the calls of modules below `model` while the block runs."""
    if not tapes or torch.is_inference_mode_enabled():
        yield
        return

    def recorder(module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            marks = [(tape, len(tape.entries)) for tape in tapes if tape.open]
            if not marks or inside_checkpoint():
                return forward(*args, **kwargs)
            output = forward(*args, **kwargs)
            entry = None
            for tape, mark in marks:
                if tape.open:
                    if entry is None:
                        if not all(isinstance(x, _PLAIN) for x in _leaves(output)):
                            break
                        entry = Entry(module, output, _versions(output), current(devices))
                    tape.entries[mark:] = [entry]  # its inner modules finished with it
            return output

        return run

    began = current(devices)
    for tape in tapes:
        tape.began = began
    with ExitStack() as stack:
        for module in _to_watch(model, tapes):
            stack.callback(patch_forward(module, recorder(module, module.forward)))
        yield


def _to_watch(model: nn.Module, tapes: Sequence[Tape]) -> Iterable[nn.Module]:
    """Every module in the first step, then the known prefixes alone."""
    known = [tape.prefix.modules for tape in tapes]
    if any(modules is None for modules in known):
        return (module for module in eager_modules(model) if module is not model)
    return dict.fromkeys(module for modules in known for module in modules or ())


@contextmanager
def replaying(tape: Tape | None, attached: bool, noise: bool = True) -> Iterator[None]:
    """Return recorded outputs, in order, instead of running the modules on the tape; afterwards they run as usual.

    Args:
        tape: what was recorded; None replays nothing.
        attached: hand out the outputs with their graph.
        noise: go on with the random state that each module left in the clean pass; False for a pass with noise of its own,
            which may only replay a prefix that drew nothing.
    """
    if tape is None or not tape.entries:
        yield
        return
    queues: dict[nn.Module, deque[Entry]] = defaultdict(deque)
    for entry in tape.entries:
        queues[entry.module].append(entry)
    noise = noise and not tape.noise_free

    def replayer(queue: deque[Entry], forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            if queue:
                entry = queue.popleft()
                if entry.intact():
                    return entry.result(attached, noise)
            return forward(*args, **kwargs)

        return run

    with ExitStack() as stack:
        for module, queue in queues.items():
            stack.callback(patch_forward(module, replayer(queue, module.forward)))
        yield
