"""Find modules by name: the globs of sites and of `sparring.nn.convert`."""

import difflib
import re
from collections.abc import Callable, Iterator

from torch import nn


def walk(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every module once with its own part of the name, like `named_modules` at a fifth of its price: steps call this often.

    >>> [name for name, _ in walk(nn.Sequential(nn.Sequential(nn.Tanh()), nn.ReLU()))]
    ['', '1', '0', '0']
    """
    seen = {model}
    waiting = [("", model)]
    while waiting:
        name, module = waiting.pop()
        yield name, module
        for key, child in module._modules.items():
            if child is not None and child not in seen:
                seen.add(child)
                waiting.append((key, child))


def pattern(glob: str) -> re.Pattern[str]:
    """A module-name glob as a regular expression: `*` and `?` stay inside one dotted part, `**` crosses dots, `|` separates
    alternatives.

    >>> bool(pattern("layers.*.norm").fullmatch("layers.3.norm")), bool(pattern("*").fullmatch("layers.3"))
    (True, False)
    >>> bool(pattern("**").fullmatch("layers.3.norm"))
    True
    """
    pieces = {"**": ".*", "*": "[^.]*", "?": "[^.]", "|": "|"}
    return re.compile("".join(pieces.get(part, re.escape(part)) for part in re.split(r"(\*\*|\*|\?|\|)", glob)))


def match(
    model: nn.Module, glob: str, accept: Callable[[nn.Module], bool] = lambda module: True, what: str = "module"
) -> dict[str, nn.Module]:
    """Modules of `model` whose name fits the glob and that `accept` takes; raises with near names if there is none.

    Args:
        model: where to look; its own name is the empty string.
        glob: exact name, or a pattern as in `pattern`.
        accept: which kinds of module the site can act on.
        what: how the error message calls such a module.
    """
    fits = pattern(glob)
    named = [(name, module) for name, module in model.named_modules() if fits.fullmatch(name)]
    accepted = {name: module for name, module in named if accept(module)}
    if accepted:
        return accepted
    if named:
        seen = ", ".join(f"{name or '<model>'} ({type(module).__name__})" for name, module in named[:5])
        raise ValueError(f"{glob!r} matches no {what}, only {seen}")
    usable = [name for name, module in model.named_modules() if name and accept(module)]
    near = difflib.get_close_matches(glob, usable, n=4, cutoff=0.4) or usable[:6]
    hint = f"; near names: {', '.join(near)}" if near else f"; the model has no {what}"
    raise ValueError(f"{glob!r} matches no {what} in {type(model).__name__}{hint}")
