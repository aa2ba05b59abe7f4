"""Which function makes an attention layer show its scores: one a kind of layer, open to users."""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Protocol, TypeVar

from torch import Tensor, nn

from ..site import Undo


class ScoreVisit(Protocol):
    """Given the clean scores and which of them count, returns the scores that shall stand."""

    def __call__(self, scores: Tensor, valid: Tensor | None) -> Tensor: ...


Adapter = Callable[[nn.Module, ScoreVisit], Undo]
Kind = type[nn.Module] | str | Callable[[nn.Module], bool]
A = TypeVar("A", bound=Adapter)

_adapters: list[tuple[Callable[[nn.Module], bool], Adapter]] = []


def register_attention(*kinds: Kind) -> Callable[[A], A]:
    """Teach `Scores` a kind of attention layer: the decorated function makes such a layer show its scores to a visit.

    It is called with a layer and a `visit(scores, valid)`, and returns the way back. Whenever the layer runs, it must hand the
    visit its scores before the softmax, (B, T) or (B, heads, queries, keys), with the mask of those that count (None: all of
    them), and go on with what the visit returns. Layers that call a softmax on their scores need no code of their own:
    `register_attention(MyLayer)(through_softmax)`.

    >>> import torch, sparring as sp
    >>> class Pool(nn.Module):
    ...     def forward(self, x):  # (B, T, H)
    ...         return (x.sum(-1).softmax(-1).unsqueeze(-1) * x).sum(1)
    >>> _ = sp.sites.register_attention(Pool)(sp.sites.through_softmax)
    >>> push = torch.tensor([[0.0, 50.0]])
    >>> sp.perturbed_call(Pool(), {sp.Scores(): push}, torch.tensor([[[1.0], [2.0]]]))
    tensor([[2.]])

    Args:
        kinds: layer types; names of types ("package.module.Type") where importing them would be a waste; or functions that say of a
            module whether they mean it. What was registered last is asked first. A layer inside a layer that is known is not looked at.
    """

    def register(adapter: A) -> A:
        _adapters.extend((_test_of(kind), adapter) for kind in kinds)
        return adapter

    return register


def _test_of(kind: Kind) -> Callable[[nn.Module], bool]:
    if isinstance(kind, type):
        if not issubclass(kind, nn.Module):
            raise TypeError(f"register_attention({kind.__name__}): a layer is an nn.Module")
        return lambda module: isinstance(module, kind)
    if isinstance(kind, str):
        return lambda module: kind in _names(type(module))  # type: ignore[arg-type]  # classes are hashable
    if not callable(kind):
        raise TypeError(f"register_attention({kind!r}): a layer type, its dotted name, or a function of a module")
    return kind


@cache
def _names(kind: type[nn.Module]) -> frozenset[str]:
    return frozenset(f"{base.__module__}.{base.__qualname__}" for base in kind.__mro__)


def adapter_of(module: nn.Module) -> Adapter | None:
    """The function for a layer; None where no kind fits."""
    return next((adapter for fits, adapter in reversed(_adapters) if fits(module)), None)


def reachable(module: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The attention layers at or below `module` that `Scores` can act on, with their names, each once."""
    yield from _below(module, name, set())


def _below(module: nn.Module, name: str, seen: set[nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    if module in seen:
        return
    seen.add(module)
    if adapter_of(module) is not None:
        yield name, module
        return
    for key, child in module.named_children():
        yield from _below(child, f"{name}.{key}" if name else key, seen)
