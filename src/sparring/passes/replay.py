"""Prefix replay: what ran before a site need not run again.

A perturbation cannot change what came before its site. While the clean pass runs, a `Tape` notes the outermost modules that
finished before the first of its sites fired. `replaying` puts those outputs in place of the modules' work in later passes of the
same step. Exact by construction:

- a module that is used again after the site runs for real (its recorded calls are counted and used up),
- an output that was changed in place since it was recorded is not used: that module runs again,
- an output that holds anything but tensors and plain values is not recorded,
- where the model sets attributes as it runs nothing is replayed: one module may begin what another, behind the site, goes on with,
- a module under which somebody else's hooks sit runs again, so that they see every call (hidden states that a model collects),
- the random state after a replayed module is the one it left in the clean pass, so later noise is the same.

Which modules these are is learned in the first step (`Prefix`); later steps watch those alone, keep random states only where
generators moved, and skip the children of an `nn.Sequential` before the site as one.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import nn

from ..nn.randomness import RandomState, Watch
from ..sites.site import Undo, undo_all
from .recomputation import inside_checkpoint
from .tape import Entry, Tape, is_plain_sequential


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


def recording(model: nn.Module, tapes: Sequence[Tape], watch: Watch) -> Undo:
    """Let the tapes note the calls of modules below `model` until the returned function is called.

    Args:
        model: where to look.
        tapes: each is closed by whoever meets its site.
        watch: begun before the pass.
    """
    if torch.is_inference_mode_enabled():  # its tensors have no versions
        return lambda: None
    learning = any(tape.prefix.units is None for tape in tapes)
    kept = watch.before if learning else None
    for tape in tapes:
        if tape.prefix.drawn is not None:
            kept = tape.prefix.drawn.joined(kept)
    for tape in tapes:
        tape.watch, tape.kept = watch, kept
    recorder = _Recorder(tapes, learning, kept)
    watched = _to_watch(model, tapes, learning)
    back = _patch([(module, recorder.of(module, cuts)) for module, cuts in watched])
    undo: list[Undo] = [*(tape.learn for tape in tapes), back]
    return lambda: undo_all(undo)


def _patch(patches: Sequence[tuple[nn.Module, Callable[..., Any]]]) -> Undo:
    """`patch_forward` for many modules, with one way back: thousands of closures would keep the garbage collector busy."""
    before = [(module.__dict__, module.__dict__.get("forward")) for module, _ in patches]
    for module, forward in patches:
        module.__dict__["forward"] = forward

    def undo() -> None:
        for attributes, forward in before:
            if forward is None:
                del attributes["forward"]
            else:
                attributes["forward"] = forward

    return undo


@dataclass
class _Recorder:
    """Makes the functions that stand in for modules while their calls are noted."""

    tapes: Sequence[Tape]
    learning: bool
    kept: RandomState | None

    def of(self, module: nn.Module, cuts: set[int | None]) -> Callable[..., Any]:
        forward, plain, whole = module.forward, is_plain_sequential(module), None in cuts
        if plain and cuts != WHOLE:
            forward = partial(self._children, module, cuts - WHOLE)

        def run(*args: Any, **kwargs: Any) -> Any:
            marks = [(tape, len(tape.entries)) for tape in self.tapes if tape.open]
            if not marks:
                return forward(*args, **kwargs)
            if self.learning:
                for tape, mark in marks:
                    tape.running.append((module, mark, plain))
            output = forward(*args, **kwargs)
            if whole:
                self._note(marks, module, None, output)
            if self.learning:
                for tape, mark in marks:
                    if tape.open:
                        del tape.running[tape.running.index((module, mark, plain)) :]
            return output

        return run

    def _children(self, module: Any, cuts: set[int | None], input: Any) -> Any:
        """What `nn.Sequential.forward` does, noted after some of the children."""
        marks = [(tape, len(tape.entries)) for tape in self.tapes if tape.open]
        for index, child in enumerate(module):
            input = child(input)
            if index in cuts:
                self._note(marks, module, index, input)
        return input

    def _note(self, marks: Sequence[tuple[Tape, int]], module: nn.Module, cut: int | None, output: Any) -> None:
        entry = None
        for tape, mark in marks:
            if tape.open:
                if entry is None and inside_checkpoint():
                    entry = Entry.counted(module)
                elif entry is None:
                    entry = Entry.of(module, cut, output, None if self.kept is None else self.kept.beside())
                tape.entries[mark:] = [entry]  # its inner modules finished with it


WHOLE: set[int | None] = {None}


def _to_watch(model: nn.Module, tapes: Sequence[Tape], learning: bool) -> Iterator[tuple[nn.Module, set[int | None]]]:
    """Every module in the first step, then the known prefixes alone."""
    if learning:
        yield from ((module, WHOLE) for module in eager_modules(model))
        return
    units: dict[nn.Module, set[int | None]] = {}
    for tape in tapes:
        for module, cuts in (tape.prefix.units or {}).items():
            units[module] = units.get(module, set()) | cuts
    yield from units.items()


def replaying(tape: Tape, attached: bool, noise: bool = True) -> Undo:
    """Return recorded outputs, in order, instead of running the modules on the tape, until the returned function is called.

    Args:
        tape: what was recorded.
        attached: hand out the outputs with their graph.
        noise: go on with the random state that each module left in the clean pass; False for a pass with noise of its own,
            which may only replay a prefix that drew nothing.
    """
    queues: dict[nn.Module, deque[Entry]] = {}
    for entry in tape.entries:
        queues.setdefault(entry.module, deque()).append(entry)
    drawn = tape.drawn if noise else None
    for_real = False

    def replayer(module: nn.Module, queue: deque[Entry], forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            nonlocal for_real
            if for_real or not queue:
                return forward(*args, **kwargs)
            entry = queue.popleft()
            if not entry.intact:
                for_real = True  # with all that is inside: calls in there were not counted on their own
                try:
                    return forward(*args, **kwargs)
                finally:
                    for_real = False
            if drawn is not None and entry.noise is not None:
                entry.noise.restore(drawn)  # the others have moved on since
            output = entry.result(attached)
            if entry.cut is not None:
                for child in islice(module, entry.cut + 1, None):  # type: ignore[call-overload]
                    output = child(output)
            return output

        return run

    return _patch([(module, replayer(module, queue, module.forward)) for module, queue in queues.items()])
