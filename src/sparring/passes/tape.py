"""What a clean pass did before a site: finished calls, kept so that they need not run again."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from ..nn.randomness import RandomState, Watch

_PLAIN = (Tensor, int, float, bool, str, type(None), torch.Size, torch.dtype, torch.device)
FIXED, EACH = 40.0, 15.0  # what replay costs a step, and each call on the tape: microseconds on a core, roughly
WEIGHTED, BARE, THOUSAND = (
    25.0,
    5.0,
    1.0,
)  # what one pass saves: by a module with weights, one without, a thousand numbers
_HARMLESS = (__package__.partition(".")[0] + ".", "torch.nn.utils.")


class Entry(NamedTuple):
    """One finished call.

    Attributes:
        module: which module was called.
        cut: None: all of it; a number: the children of an `nn.Sequential` up to this one, and it goes on with the next.
        output: what came out.
        versions: of the tensors in the output, then; None: not to be replayed, the call is only counted.
        noise: the random state afterwards; None where no generator is known to have moved.
    """

    module: nn.Module
    cut: int | None
    output: Any
    versions: Any
    noise: RandomState | None = None

    @classmethod
    def of(cls, module: nn.Module, cut: int | None, output: Any, noise: RandomState | None) -> "Entry":
        if not isinstance(output, Tensor) and not all(isinstance(x, _PLAIN) for x in tree_leaves(output)):
            return cls.counted(module)
        return cls(module, cut, output, _versions(output), noise)

    @classmethod
    def counted(cls, module: nn.Module) -> "Entry":
        """A call that must run again."""
        return cls(module, None, None, None)

    @property
    def intact(self) -> bool:
        """Whether the output is what it was: nothing changed it in place."""
        return self.versions is not None and self.versions == _versions(self.output)

    def result(self, attached: bool) -> Any:
        if attached:
            return self.output
        if isinstance(self.output, Tensor):
            return self.output.detach()
        return tree_map(lambda x: x.detach() if isinstance(x, Tensor) else x, self.output)


@dataclass
class Prefix:
    """What an objective has learned about the modules before a group of sites.

    Attributes:
        units: the outermost modules that finish before the first site, each with the cuts at which it is noted; None before the
            first step, and again when somebody else's hook has come.
        inside: by module and cut, every module that need not run while this unit is replayed.
        drawn: the generators that moved before the site; None if none ever did.
    """

    units: dict[nn.Module, set[int | None]] | None = None
    inside: dict[tuple[nn.Module, int | None], tuple[nn.Module, ...]] = field(default_factory=dict)
    drawn: RandomState | None = None

    @property
    def empty(self) -> bool:
        return self.units == {}

    def is_watched(self, entry: Entry) -> bool:
        """Whether anybody else wants to see the calls that replaying this one would skip."""
        return any(map(_has_hooks, self._skipped(entry)))

    def gain(self, entry: Entry) -> float:
        """What replaying a call saves in one pass, at least, less what it costs. It decides about speed alone."""
        numbers = sum(x.numel() for x in tree_leaves(entry.output) if isinstance(x, Tensor))
        saved = 0.0
        for module in self._skipped(entry):
            own = [t for part in (module._parameters, module._buffers) for t in part.values() if t is not None]
            numbers += sum(t.numel() for t in own)
            saved += WEIGHTED if own else 0.0 if module._modules else BARE
        return saved + THOUSAND * numbers / 1000 - EACH

    def _skipped(self, entry: Entry) -> tuple[nn.Module, ...]:
        """What need not run while an entry is replayed."""
        key = entry.module, entry.cut
        if key not in self.inside:
            children = (child for child in entry.module._modules.values() if child is not None)
            skipped = [entry.module] if entry.cut is None else islice(children, entry.cut + 1)
            self.inside[key] = tuple(dict.fromkeys(m for child in skipped for m in child.modules()))
        return self.inside[key]


@dataclass
class Tape:
    """Calls that finished before any of `sites` fired, outermost modules only, in order.

    Attributes:
        running: in the first step, modules that have begun, how many entries there were then, and whether it is a plain
            `nn.Sequential`.
        watch: begun before the pass.
        kept: of which generators the entries hold the state.
        drawn: the generators that moved before the site.
        noise_free: none did.
        lost: nothing may be replayed in this step.
    """

    sites: frozenset[Any]
    prefix: Prefix = field(default_factory=Prefix)
    entries: list[Entry] = field(default_factory=list)
    running: list[tuple[Any, int, bool]] = field(default_factory=list)
    watch: Watch | None = None
    kept: RandomState | None = None
    open: bool = True
    drawn: RandomState | None = None
    noise_free: bool = False
    lost: bool = False

    def close(self) -> None:
        """Stop at the first site; note what was random before it, and leave out what others watch."""
        if not self.open:
            return
        self.open = False
        if self.watch is None:
            return
        self.drawn = self.watch.moved()
        self.noise_free = self.drawn is None
        if self.drawn is not None:
            self.lost = not self.drawn.within(self.kept)  # what nobody kept cannot be put back; the next step keeps it
            self.prefix.drawn = self.drawn.joined(self.prefix.drawn)
        for index, entry in enumerate(self.entries):
            if entry.versions is not None and self.prefix.is_watched(entry):
                self.entries[index] = Entry.counted(entry.module)
                if entry.cut is not None:
                    self.prefix.units = None  # look again which of its children may be skipped
                    self.lost = True
        if self.lost:
            self.entries.clear()

    def forbid(self) -> None:
        """Nothing before these sites is replayed, now or later: what a skipped module would leave in an attribute, others may read."""
        self.prefix.units = {}
        self.entries.clear()

    def learn(self) -> None:
        """After a pass that noted every module: which of them to note from now on.

        What an unfinished `nn.Sequential` has done is one entry, its last intact output: its children are skipped as one.
        """
        if self.prefix.units is not None or self.open or self.lost:
            return
        end = len(self.entries) - 1  # no child was at work: the last one may have met the site in its hooks
        for module, start, plain in reversed(self.running):
            cut = -1
            for index, (child, entry) in enumerate(zip(module, self.entries[start:end])) if plain else ():
                if entry.module is not child or entry.cut is not None or entry.versions is None:
                    break
                cut = index if entry.intact else cut
            if cut >= 0:
                last = self.entries[start + cut]
                self.entries[start : start + cut + 1] = [last._replace(module=module, cut=cut)]
            end = len(self.entries)
        self._choose()
        units: dict[nn.Module, set[int | None]] = {}
        for entry in self.entries:
            units.setdefault(entry.module, set()).add(entry.cut)
        self.prefix.units = units

    def _choose(self) -> None:
        """Keep the calls that are dearer to run than to replay, if together they are worth the trouble.

        What has children stays on the tape in any case: run for real, it may call a module whose own calls are counted.
        """
        gains: dict[nn.Module, float] = {}
        for entry in self.entries:
            gains[entry.module] = gains.get(entry.module, 0.0) + (self.prefix.gain(entry) if entry.intact else -EACH)
        kept = {module: gain for module, gain in gains.items() if gain > 0 or module._modules}
        if sum(kept.values()) <= FIXED:
            kept.clear()
        self.entries = [entry for entry in self.entries if entry.module in kept]


def is_plain_sequential(module: nn.Module) -> bool:
    """Whether a module does nothing but call its children one after the other, and nothing has been put in place of that."""
    kind: Any = type(module)
    return (
        isinstance(module, nn.Sequential)
        and "forward" not in module.__dict__
        and kind.forward is nn.Sequential.forward
        and kind.__iter__ is nn.Sequential.__iter__
        and kind.__call__ is nn.Module.__call__
    )


def _has_hooks(module: nn.Module) -> bool:
    """Whether anybody else's hook sits on a module, or has replaced its forward."""
    state = module.__dict__
    patch = state.get("forward")
    if not (state["_forward_hooks"] or state["_forward_pre_hooks"]) and patch is None:
        return False
    hooks: Iterable[Any] = (*state["_forward_hooks"].values(), *state["_forward_pre_hooks"].values())
    for function in hooks if patch is None else (*hooks, patch):
        home = getattr(function, "__module__", None) or type(function).__module__
        if not f"{home}.".startswith(_HARMLESS):
            return True
    return False


def _versions(output: Any) -> int | Sequence[int]:
    if isinstance(output, Tensor):  # most modules return one tensor
        return output._version
    return tuple(x._version for x in tree_leaves(output) if isinstance(x, Tensor))
