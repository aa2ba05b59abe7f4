"""A step cut loose from the leader's graph: its passes can run again during backward, and hold nothing until then."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

from ..sites.site import Site
from .mark import Mark
from .one import Arguments
from .step import Step
from .tape import Tape


@dataclass
class Loose:
    """Where a step's passes meet the graph of what came before them: inputs that carry one, and the outputs on a tape.

    Attributes:
        attached: those tensors, with their graph; `on` takes a leaf for each of them.
    """

    attached: list[Tensor]
    _step: Step
    _tape: Tape | None
    _sites: frozenset[Site]
    _flat: list[Any]
    _form: TreeSpec
    _mark: Mark
    _given: list[tuple[Tensor, int]]

    @classmethod
    def of(cls, step: Step, *sites: Site) -> "Loose":
        """What passes of `step` with values at `sites` hang on, and a mark of the model and the inputs as they are now."""
        group = frozenset(sites)
        tape = step.tapes.get(group)
        inputs = Arguments.of(step.inputs)
        both = (inputs.args, inputs.kwargs)
        flat, form = tree_flatten((both, [] if tape is None else [entry.output for entry in tape.entries]))
        given = [(x, x._version) for x in tree_leaves(both) if isinstance(x, Tensor)]
        # Neither passes nor outputs of the step itself: what they hold must go as the leader's backward pass goes through it.
        bare = replace(
            step, clean=None, last=None, notes={}, cache={}, _outputs=None, _losses=None, _raw=None, _latest=None
        )
        return cls([x for x in flat if _carries(x)], bare, tape, group, flat, form, Mark(step.model), given)

    def on(self, leaves: Sequence[Tensor]) -> Step:
        """The step with `leaves` in place of what was attached."""
        waiting = iter(leaves)
        flat = [next(waiting) if _carries(x) else x for x in self._flat]
        (args, kwargs), outputs = tree_unflatten(flat, self._form)
        tapes = {}
        if self._tape is not None:
            # A leaf shares the version counter of what it stands for: a change in place since the clean pass is still seen.
            pairs = zip(self._tape.entries, outputs, strict=True)
            entries = [entry._replace(output=output) for entry, output in pairs]
            tapes = {self._sites: replace(self._tape, entries=entries)}
        return replace(self._step, inputs=Arguments(args, kwargs), tapes=tapes, cache={})

    def unchanged(self) -> None:
        """Raise where the model or the inputs are no longer what they were."""
        self._mark.check()
        if any(x._version != version for x, version in self._given):
            raise RuntimeError(
                "the inputs were changed in place between the loss and its backward pass, which runs the model on them again: call "
                "backward() first"
            )


def _carries(x: Any) -> bool:
    return isinstance(x, Tensor) and x.requires_grad
