"""What an objective has learned about its model, kept from step to step."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from ..nn.randomness import ONLY_CPU
from ..sites.site import Site
from .layout import Layout
from .masks import sides_of
from .memory import Memory
from .tape import Prefix, Tape


@dataclass
class Ground:
    """Where passes act on a model, on which devices, and what need not run again.

    Attributes:
        layout: where sites and normalisation layers are; None before the first step.
        sides: the encoder and the decoder of a model that has both.
        devices: the CPU, and every accelerator that the model used in the last step.
        memory: what the model itself remembers from call to call.
        prefixes: by group of sites, the modules that run before them.
    """

    layout: Layout | None = None
    sides: dict[nn.Module, str] = field(default_factory=dict)
    devices: tuple[torch.device, ...] = ONLY_CPU
    memory: Memory = field(default_factory=Memory)
    prefixes: dict[frozenset[Site], Prefix] = field(default_factory=dict)

    def look(self, model: nn.Module, sites: Sequence[Site]) -> Layout:
        """The model as it is now: its modules, or the devices they are on, may have changed since the last step."""
        layout = Layout.of(model, sites, self.layout)
        if layout is not self.layout:
            self.prefixes.clear()
            self.sides = sides_of(model)
            self.layout = layout
        self.devices = layout.devices()
        return layout

    def tapes(self, groups: Iterable[Sequence[Site]]) -> dict[frozenset[Site], Tape]:
        """A tape for each group of sites before which anything runs."""
        tapes = {}
        for sites in groups:
            if sites:
                group = frozenset(sites)
                prefix = self.prefixes.get(group)
                if prefix is None:
                    prefix = self.prefixes[group] = Prefix()
                if not prefix.empty:
                    tapes[group] = Tape(group, prefix)
        return tapes
