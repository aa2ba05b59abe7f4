"""One grammar for all recipes: the words they share, and what is said to somebody who uses others."""

import difflib
import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec

from torch import Tensor

from ..objective import Objective
from ..sites import Input, Output, Site

Loss = Callable[..., Tensor]
Place = str | Site | None
P = ParamSpec("P")

OPTIONS = tuple(list(inspect.signature(Objective.__init__).parameters)[4:])
PLAYER = ("ball", "steps", "step_size", "start", "update", "unroll", "interaction", "reading", "restarts")
WORDS = {  # what other papers and libraries call the same thing
    "epsilon": "ball",
    "eps": "ball",
    "radius": "ball",
    "fraction": "ball",
    "delta": "ball",
    "norm": "ball",
    "epsilons": "ball",
    "iterations": "steps",
    "rounds": "steps",
    "num_steps": "steps",
    "k": "steps",
    "n_iter": "steps",
    "ip": "steps",
    "xi": "start",
    "sigma": "start",
    "noise_var": "start",
    "init": "start",
    "random_start": "start",
    "alpha": "weight",
    "lam": "weight",
    "lambda_": "weight",
    "beta": "weight",
    "coefficient": "weight",
    "kappa": "weight",
    "lr": "step_size",
    "eta": "step_size",
    "step": "step_size",
    "backend": "unroll",
    "player": "by",
    "attack": "by",
    "divergence": "penalty",
    "drop": "keep",
    "p": "keep",
    "dropout": "keep",
    "ratio": "keep",
    "site": "at",
    "layer": "at",
    "terms": "+",
    "clean_weight": "+",
}


def site_of(at: Place) -> Site:
    """A glob means the output of those modules, None the model's input; a site is itself."""
    if at is None:
        return Input()
    return Output(at) if isinstance(at, str) else at


def recipe(function: Callable[P, Objective]) -> Callable[P, Objective]:
    """Makes a recipe say what is wrong with its words, in its own name."""
    parameters = inspect.signature(function).parameters
    own = [name for name, p in parameters.items() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    name = function.__name__
    ball = parameters["ball"].default if "ball" in parameters else None

    @functools.wraps(function)
    def made(*args: P.args, **kwargs: P.kwargs) -> Objective:
        for word in kwargs:
            if word not in own and word not in OPTIONS:
                raise TypeError(_unknown(name, word, own, ball))
        if len(args) > 3:
            words = ", ".join(own[3:6])
            raise TypeError(f"{name}(model, loss, at) takes everything else by name: {words}, ...")
        given = kwargs.get("ball")
        if isinstance(given, int | float) and not isinstance(given, bool):
            raise TypeError(f"{name}(ball={given}): how far is an object, write ball={_like(ball, given)}")
        if kwargs.get("by") is not None:
            double = [word for word in PLAYER if word in kwargs and word in own]
            if double:
                raise TypeError(
                    f"{name}(by=..., {double[0]}=...): by= is another player, with a {double[0]} of its own; give one of the two"
                )
        return function(*args, **kwargs)

    return made


def _like(ball: Any, value: Any) -> str:
    """How to write a ball of that size, of the kind that the recipe uses."""
    kind = type(ball).__name__ if ball is not None else "L2"
    return f"sp.{kind}({value})"


def _unknown(name: str, word: str, own: list[str], ball: Any) -> str:
    known = [w for w in (*own, *OPTIONS) if w not in ("model", "loss")]
    meant = WORDS.get(word.lower())
    if meant == "+":
        return f'{name}() has no word "{word}": objectives over the same model are put together with a + b'
    if meant not in known:
        near = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
        meant = near[0] if near else None
    if meant is None:
        return f'{name}() has no word "{word}": it takes {", ".join(known)}'
    hint = f"{meant}={_like(ball, '...')}" if meant == "ball" else f"{meant}="
    return f'{name}() has no word "{word}": did you mean {hint}?'


__all__ = ["Loss", "Place", "recipe", "site_of"]
