"""Swap the dropout layers of a finished model for learnable ones, in place."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from ..matching import match
from ..randomness import devices_of, put_back
from .bernoulli import BernoulliDropout
from .concrete import ConcreteDropout
from .gaussian import GaussianDropout

_OURS = (BernoulliDropout, ConcreteDropout, GaussianDropout)


def convert(
    model: nn.Module,
    glob: str = "**",
    to: type[nn.Module] = BernoulliDropout,
    *,
    features: int | None = None,
    example: Any = None,
    tie: bool = False,
    **options: Any,
) -> dict[str, nn.Module]:
    """Replace the dropout layers that a glob names; returns the new layers by name.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))
    >>> convert(model)
    {'2': BernoulliDropout(features=8, keep=0.800, rescale=False)}
    >>> model[2].logits.shape
    torch.Size([8])

    The old layer's drop rate becomes the starting rate, its mode (train or eval) is kept, and the rates live where the model
    does. How many units a layer sees is read from the layers before it in the same `nn.Sequential`, or observed on `example`.
    Layers at p = 0 are switched off and stay as they are; so do layers through which the example does not pass, with a
    warning that names them (a fused attention kernel, for one, never calls the dropout layer beside it).

    Args:
        model: changed in place.
        glob: names of dropout layers; `*` stays inside one dotted part, `**` crosses dots.
        to: `BernoulliDropout`, `ConcreteDropout`, `GaussianDropout`, or a class with their constructor.
        features: units of every converted layer; 1 for one rate per layer.
        example: a batch (or a tuple or mapping of arguments) the model can run on, to observe the number of units.
        tie: let all converted layers share one logit (`BernoulliDropout` only).
        **options: given to the new layers, e.g. `keep=0.9`, `rescale=True`, `dim=-1`.
    """
    if tie and to is not BernoulliDropout:
        raise ValueError(f"tie=True shares logits, which {to.__name__} has none of; use to=BernoulliDropout")
    found = match(model, glob, lambda m: isinstance(m, _DropoutNd) and not isinstance(m, _OURS), "dropout layer")
    if "" in found:
        raise ValueError("the model is itself a dropout layer; construct the new layer instead of converting")
    off = [name for name, layer in found.items() if getattr(layer, "p", None) == 0]
    found = {name: layer for name, layer in found.items() if name not in off}
    if not found:
        raise ValueError(
            f"{', '.join(off)}: every dropout layer that {glob!r} names is at p=0.0, which is off; set its p first"
        )
    if tie:
        features = 1
    units = {} if example is None else _observe(model, found, example, options.get("dim", 1))
    idle = [] if example is None else sorted(set(found) - set(units))
    if idle:
        found = {name: layer for name, layer in found.items() if name in units}
        if not found:
            raise ValueError(f"the example passes through none of {', '.join(idle)}; give another example or glob")
        warnings.warn(f"left alone, since the example does not pass through them: {', '.join(idle)}", stacklevel=2)
    device = options.get("device", next((p.device for p in model.parameters()), None))
    made: dict[str, nn.Module] = {}
    replacements: dict[int, nn.Module] = {}
    for name, old in found.items():
        assert isinstance(old, _DropoutNd)
        count = features or units.get(name) or _preceding(model, name)
        new = to(features=count, **_start(name, old, to, options), **options)
        if tie and made:
            new.logits = next(iter(made.values())).logits
        made[name] = replacements[id(old)] = new.to(device).train(old.training)
    for parent in list(model.modules()):  # every place that holds an old layer, shared ones included
        for key, child in list(parent._modules.items()):
            if id(child) in replacements:
                parent._modules[key] = replacements[id(child)]
    return made


def _start(name: str, old: _DropoutNd, to: type[nn.Module], options: dict[str, Any]) -> dict[str, float]:
    """The new layer's starting rate, from the old one's, unless the caller gave it."""
    if "keep" in options or "p" in options:
        return {}
    limit = 0.5 if issubclass(to, GaussianDropout) else 1.0
    if not 0 < old.p <= limit or old.p == 1:
        raise ValueError(f"{name} has p={old.p}, no starting rate for {to.__name__}; give keep= or p=")
    return {"keep": 1 - old.p} if issubclass(to, BernoulliDropout) else {"p": old.p}


def _preceding(model: nn.Module, name: str) -> int:
    """Units handed to a dropout layer by the layers before it in its `nn.Sequential`."""
    parent, _, key = name.rpartition(".")
    holder = model.get_submodule(parent)
    if isinstance(holder, nn.Sequential):
        before = list(holder._modules)[: list(holder._modules).index(key)]
        for earlier in reversed(before):
            layer = holder._modules[earlier]
            for attribute in ("out_features", "out_channels", "num_features"):
                if isinstance(getattr(layer, attribute, None), int):
                    return int(getattr(layer, attribute))
            if isinstance(layer, nn.Flatten | nn.Unflatten | nn.Sequential):
                break
    raise ValueError(
        f"how many units reach {name} cannot be read from the layers before it; give features= or example="
    )


@torch.no_grad()
def _observe(model: nn.Module, found: dict[str, nn.Module], example: Any, dim: int) -> dict[str, int]:
    """Units that reach each layer when the model runs on an example; the run leaves mode, buffers and RNG alone."""
    units: dict[str, int] = {}

    def watch(name: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        return lambda _, inputs: units.update({name: inputs[0].shape[dim]})

    handles = [layer.register_forward_pre_hook(watch(name)) for name, layer in found.items()]
    modes = {module: module.training for module in model.modules()}
    try:
        model.eval()
        with put_back(*devices_of(model)):
            arguments = example if isinstance(example, tuple) else () if isinstance(example, Mapping) else (example,)
            model(*arguments, **(example if isinstance(example, Mapping) else {}))
    finally:
        for module, mode in modes.items():
            module.training = mode
        for handle in handles:
            handle.remove()
    return units
