"""A text that is read on and on: windows of parallel columns, and what the model remembers from one to the next.

>>> import torch
>>> text = Text(torch.arange(23), window=4)
>>> [window.stop - window.start for window in text.windows(columns=2, seed=0, epoch=0)]
[4, 4, 2]
>>> (tokens, state), targets = text.batch(slice(4, 8), columns=2, rows=slice(0, 2), carried=None)
>>> tokens.tolist(), targets.tolist(), state
([[4, 5, 6, 7], [15, 16, 17, 18]], [[5, 6, 7, 8], [16, 17, 18, 19]], None)
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

SHORTEST = 5
LONGEST = 10  # words that a random window may have above the usual length


@dataclass(frozen=True, eq=False)
class Text:
    """One long text for truncated back-propagation through time, given as `Data(text=...)`.

    The text is cut into as many columns as a batch has rows. An update sees one window of all columns; the model is
    called with `(tokens, state)` and must return something with an attribute `state`, which it gets back, detached, with
    the next window (None at the start of an epoch). The state of a step's first pass counts: the clean one.

    Args:
        words: their numbers, (N,).
        window: words of a window.
        varied: draw every length around `window` (one in twenty around half of it), so that the same words do not
            always meet the same border; the learning rate of an update is then scaled by its length, the mean over its
            windows where it is of several.

    Paper: Merity, Keskar and Socher, Regularizing and Optimizing LSTM Language Models (2018), section 4.1.
    """

    words: Tensor
    window: int = 70
    varied: bool = False

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ValueError(f"window={self.window} does not fit; a window has at least one word")

    def __len__(self) -> int:
        return len(self.words)

    def windows(self, columns: int, seed: int, epoch: int) -> list[slice]:
        """The windows of an epoch, the same for the same seed on every machine."""
        steps = len(self.words) // columns - 1  # the last word is only ever a target
        if steps < 1:
            raise ValueError(
                f"a text of {len(self.words)} words has no {columns} columns of two words; use a smaller batch"
            )
        return list(_windows(steps, self.window, self.varied, seed, epoch))

    def rate(self, window: slice) -> float:
        """The factor of the learning rate for a window."""
        return (window.stop - window.start) / self.window if self.varied else 1.0

    def batch(self, window: slice, columns: int, rows: slice, carried: Any) -> tuple[Any, Tensor]:
        """One window of the columns `rows`: `((tokens, state), next words)`, both (B, T)."""
        steps = len(self.words) // columns
        part = self.words[: steps * columns].view(columns, steps)[rows]
        return (part[:, window], carried), part[:, window.start + 1 : window.stop + 1]


@lru_cache(maxsize=8)
def _windows(steps: int, usual: int, varied: bool, seed: int, epoch: int) -> tuple[slice, ...]:
    ends = range(usual, steps + usual, usual) if not varied else _random_ends(steps, usual, seed, epoch)
    bounds = [0, *(end for end in ends if end < steps), steps]
    return tuple(slice(a, b) for a, b in pairwise(bounds))


def _random_ends(steps: int, usual: int, seed: int, epoch: int) -> Iterator[int]:
    random, place = np.random.default_rng([seed, epoch]), 0
    while place < steps:
        mean = usual if random.random() < 0.95 else usual / 2
        place += min(max(SHORTEST, int(random.normal(mean, 5))), usual + LONGEST)
        yield place


def detached(tree: Any) -> Any:
    """A copy of a tree of tensors that holds no graph."""
    if isinstance(tree, Tensor):
        return tree.detach()
    if isinstance(tree, (list, tuple)):
        return type(tree)(detached(branch) for branch in tree)
    if isinstance(tree, dict):
        return {name: detached(branch) for name, branch in tree.items()}
    return tree


class Memory:
    """What a model remembers between two windows: taken from the first pass of every training step."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.carried: Any = None
        self.waiting = False
        model.register_forward_hook(self.listen)

    def begin(self, first: bool) -> Any:
        """Start a step and hand out what it begins with; nothing at the start of an epoch."""
        self.waiting = True
        if first:
            self.carried = None
        return self.carried

    def listen(self, module: torch.nn.Module, inputs: Any, outputs: Any) -> None:
        """Keep the state that the pass left behind."""
        if module.training and self.waiting:
            self.carried, self.waiting = detached(outputs.state), False
