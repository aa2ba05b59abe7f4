"""Looking after learned dropout rates in training: optimiser groups, bounds, and what to log."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from .bernoulli import BernoulliDropout
from .concrete import ConcreteDropout
from .gaussian import GaussianDropout


def _rate_layers(model: nn.Module) -> Iterator[tuple[str, nn.Module, nn.Parameter]]:
    for name, module in model.named_modules():
        if isinstance(module, BernoulliDropout):
            yield name, module, module.logits
        elif isinstance(module, ConcreteDropout):
            yield name, module, module.p_logit
        elif isinstance(module, GaussianDropout) and isinstance(module.log_variance, nn.Parameter):
            yield name, module, module.log_variance


def parameter_groups(
    model: nn.Module, lr: float, rates_lr: float | None = None, weight_decay: float = 0.0
) -> list[dict[str, Any]]:
    """Split a model's parameters for an optimiser: learned dropout rates get their own step size and no decay.

    >>> from sparring.nn import BernoulliDropout
    >>> model = nn.Sequential(nn.Linear(2, 3), BernoulliDropout(3))
    >>> groups = parameter_groups(model, lr=1e-3, rates_lr=1e-2, weight_decay=1e-4)
    >>> [(len(group["params"]), group["lr"], group["weight_decay"]) for group in groups]
    [(2, 0.001, 0.0001), (1, 0.01, 0.0)]

    Args:
        model: any model.
        lr: learning rate of everything else.
        rates_lr: learning rate of the rates; None takes ten times `lr`, since a logit moves further than a weight.
        weight_decay: of everything else; decay would pull every rate towards one half.
    """
    rates = list({id(p): p for _, _, p in _rate_layers(model)}.values())
    ids = {id(p) for p in rates}
    rest = [p for p in model.parameters() if id(p) not in ids]
    groups: list[dict[str, Any]] = [{"params": rest, "lr": lr, "weight_decay": weight_decay}]
    if rates:
        groups.append({"params": rates, "lr": 10 * lr if rates_lr is None else rates_lr, "weight_decay": 0.0})
    return groups


@torch.no_grad()
def clamp_rates(model: nn.Module, low: float = 0.01, high: float = 0.99) -> None:
    """Keep every learned keep rate of the model inside `[low, high]`, in place.

    >>> from sparring.nn import BernoulliDropout
    >>> layer = BernoulliDropout(2, keep=0.9999)
    >>> clamp_rates(layer)
    >>> layer.keep
    tensor([0.9900, 0.9900], grad_fn=<SigmoidBackward0>)
    """
    if not 0 < low < high < 1:
        raise ValueError(f"low={low}, high={high} must satisfy 0 < low < high < 1")
    bottom, top = (math.log(rate) - math.log1p(-rate) for rate in (low, high))
    for _, module, parameter in _rate_layers(model):
        if isinstance(module, BernoulliDropout):
            parameter.clamp_(bottom, top)
        elif isinstance(module, ConcreteDropout):
            parameter.clamp_(-top, -bottom)
        else:  # keep = 1/(1+a), so log a = -logit(keep), capped at 0
            parameter.clamp_(-top, min(-bottom, 0.0))


def clamp_after_step(
    optimizer: torch.optim.Optimizer, model: nn.Module, low: float = 0.01, high: float = 0.99
) -> RemovableHandle:
    """Clamp the model's keep rates after each optimiser step; returns the handle that undoes it.

    >>> from sparring.nn import BernoulliDropout
    >>> layer = BernoulliDropout(1, keep=0.9)
    >>> optimizer = torch.optim.SGD(parameter_groups(layer, lr=1.0, rates_lr=100.0))
    >>> handle = clamp_after_step(optimizer, layer)
    >>> layer.keep.sum().neg().backward(); optimizer.step(); round(layer.keep.item(), 3)
    0.99
    """
    clamp_rates(model, low, high)
    return optimizer.register_step_post_hook(lambda *_: clamp_rates(model, low, high))


def keep_rates(model: nn.Module) -> dict[str, Tensor]:
    """The learned keep rates by layer name, detached: what to log.

    >>> from sparring.nn import BernoulliDropout
    >>> keep_rates(nn.Sequential(nn.Linear(2, 3), BernoulliDropout(3, keep=0.25)))
    {'1': tensor([0.2500, 0.2500, 0.2500])}
    """
    return {name: module.keep.detach().clone() for name, module, _ in _rate_layers(model)}  # type: ignore[operator]
