"""Two objectives over one model put together."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from .playable import Playable


@dataclass(frozen=True)
class Parts:
    """What an objective is made of, beside its model."""

    loss: Callable[..., Tensor]
    terms: tuple[Playable, ...]
    options: dict[str, Any]


def summed(a: Parts, b: Parts) -> Parts:
    """Loss, terms and options of `a + b`; raises where they cannot go together."""
    loss = a.loss
    if not _same(a.loss, b.loss):
        free = [all(term.label_free for term in side.terms) and bool(side.terms) for side in (a, b)]
        if not any(free):
            raise ValueError(
                "a + b counts the supervised loss once, and these objectives have two different ones: give both the same loss"
            )
        loss = b.loss if free[0] and not free[1] else a.loss
    options = {}
    for name, mine in a.options.items():
        theirs, usual = b.options[name], _USUAL[name]
        if not _same(mine, theirs) and mine != usual and theirs != usual:
            raise ValueError(f"a + b: {name}={mine!r} and {name}={theirs!r} contradict each other; give both the same")
        options[name] = theirs if mine == usual else mine
    return Parts(loss, (*a.terms, *b.terms), options)


_USUAL = {
    "outputs": None,
    "valid": None,
    "reduction": "examples",
    "separate": None,
    "measure_noise_every": 0,
    "measure_interaction_every": 0,
    "replay": True,
}


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, partial) and isinstance(b, partial):
        return (a.func, a.args, a.keywords) == (b.func, b.args, b.keywords)
    return a is b or a == b
