"""Gradient checkpointing: sites come back while backward recomputes what a pass did not keep."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ..sites.site import Site, Slot

Fired = list[tuple[Site, Slot]]


def inside_checkpoint() -> bool:
    """Whether saved-tensor hooks are active, as they are inside a gradient-checkpointed region."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False) is not None


def checkpoint_frame() -> Any:
    """The frame of the checkpointed region that runs now: what torch will run again in backward. None outside of one."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
    if hooks is None:
        return None
    pack = hooks[0]
    names = getattr(getattr(pack, "__code__", None), "co_freevars", ())
    cells = dict(zip(names, getattr(pack, "__closure__", None) or ()))
    frame = cells["frame"].cell_contents if "frame" in cells else None
    return frame if hasattr(frame, "recompute_fn") else None


class Recomputation:
    """Runs a pass's checkpointed regions under the conditions of that pass whenever backward recomputes them.

    Checkpointing runs a region again during backward, long after the hooks of its pass are gone. Each region in which a site
    fires (or statistics would move) gets its recomputation wrapped: the sites are put back for its length with what was placed
    then, in the same order, and taken off again whatever happens inside.

    Args:
        installed: given a visit, the context in which the pass's sites are on and its statistics stand still.
        place: the value with a slot's placement.
    """

    def __init__(
        self, installed: Callable[[Callable[..., Tensor]], Any], place: Callable[[Site, Tensor, Tensor | None], Tensor]
    ) -> None:
        self.installed, self.place = installed, place

    def enter(self) -> Fired | None:
        """The firings of the region that runs now, watched from here on; None outside of checkpointed regions."""
        frame = checkpoint_frame()
        if frame is None:
            return None
        known = getattr(frame, "sparring", None)
        if known is None or known[0] is not self:
            known = frame.sparring = (self, [])
            frame.recompute_fn = self._wrapped(frame.recompute_fn, known[1])
        return known[1]

    def _wrapped(self, recompute: Callable[..., Any], fired: Fired) -> Callable[..., Any]:
        def again(*args: Any) -> Any:
            with self._replaying(fired):
                return recompute(*args)

        return again

    @contextmanager
    def _replaying(self, fired: Fired) -> Iterator[None]:
        waiting = list(fired)

        def revisit(
            site: Site, name: str, value: Tensor, valid: Tensor | None = None, words: Tensor | None = None
        ) -> Tensor:
            for index, (where, slot) in enumerate(waiting):
                if where == site and slot.module == name:
                    del waiting[index]
                    inner = self.enter()  # a region inside the region: recomputed on its own later
                    if inner is not None:
                        inner.append((site, slot))
                    return self.place(site, value, slot.placed)
            raise RuntimeError(
                f"{name} ran more often while gradient checkpointing recomputed it than in its forward pass: the checkpointed "
                "function must do the same thing each time"
            )

        with self.installed(revisit):
            yield
