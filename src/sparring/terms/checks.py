"""Refuse what cannot work: when the objective is built where that can be seen, else when it is called."""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from ..passes.replay import eager_modules, is_compiled
from ..sites.site import Site
from .playable import Playable


def check_model(model: nn.Module, loss: Callable[..., Any]) -> None:
    """A module that is not wrapped, and a loss with one number per example."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"Objective(model): an nn.Module is needed, got {type(model).__name__}")
    if isinstance(model, DistributedDataParallel | DataParallel):
        raise TypeError(
            f"the model is wrapped in {type(model).__name__}: wrap the objective instead, "
            f"{type(model).__name__}(sp.Objective(model, ...)), so that all its passes are one"
        )
    if any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()):
        raise TypeError(
            "the model is wrapped in FullyShardedDataParallel, which renames modules and flattens parameters: shard it with "
            "torch.distributed.fsdp.fully_shard(model) instead, and build the objective on that"
        )
    if not callable(loss):
        raise TypeError(
            f"Objective(loss): a function loss(outputs, targets) -> (B,) is needed, got {type(loss).__name__}"
        )
    reduction = getattr(loss, "reduction", "none")
    if reduction in ("mean", "sum"):
        raise ValueError(
            f"{type(loss).__name__}(reduction={reduction!r}) gives one number for the batch; an objective needs one per example: "
            f'{type(loss).__name__}(reduction="none"), or sp.cross_entropy'
        )


def check_terms(terms: Sequence[Any], model: nn.Module) -> None:
    """Terms that play together, at sites that the model has."""
    for term in terms:
        if not isinstance(term, Playable):
            raise TypeError(
                f"an objective takes terms, got {type(term).__name__}: wrap it as Term(at=..., by=..., penalty=...)"
            )
        for site in term.sites:
            check_reachable(site, model)
        if term.unrolls and any(map(is_compiled, model.modules())):
            raise ValueError(
                'unroll="autograd" differentiates twice, which compiled modules do not support: '
                'use unroll="finite_difference", or the module before torch.compile'
            )
    check_company([term for term in terms if not term.idle])


def check_company(terms: Sequence[Playable]) -> None:
    """No two terms may take over the same supervised loss, and a term that must be alone is."""
    for term in terms:
        if term.alone and len(terms) > 1:
            others = ", ".join(other.name for other in terms if other is not term)
            raise ValueError(f"{term.name} does not go together with {others}: {term.alone}")
    replacing = [term for term in terms if term.replaces]
    if len(replacing) > 1:
        names = " and ".join(term.name for term in replacing)
        raise ValueError(
            f"{names} each replace the supervised loss by one under their own perturbation; an objective has one of these"
        )


def check_reachable(site: Site, model: nn.Module) -> None:
    """Raise now, with near names or the fix, rather than in the first step."""
    eager = set(eager_modules(model))
    for name, module in site.modules(model).items():
        if module not in eager and not (site.outside and at_the_door(module, model, eager)):
            raise ValueError(
                f"{site}: {name or 'the model'} is compiled, and a compiled module ignores what is placed inside it; "
                "give the objective the module before torch.compile, or compile the parts before and after the site"
            )


def at_the_door(module: nn.Module, model: nn.Module, eager: set[nn.Module]) -> bool:
    """Whether a module is the wrapper that torch.compile returned, called by plain Python: hooks on it run outside."""
    if type(module).__name__ != "OptimizedModule":
        return False
    return module is model or any(module in parent.children() for parent in eager)


def apart(terms: Sequence[Playable]) -> tuple[tuple[Playable, ...], list[str]]:
    """The terms, each an object of its own, and the names under which they keep diagnostics: equal ones get a number."""
    own: list[Playable] = []
    for term in terms:
        own.append(copy.copy(term) if any(term is other for other in own) else term)
    seen: dict[str, int] = {}
    names = []
    for term in own:
        count = seen[term.name] = seen.get(term.name, 0) + 1
        names.append(term.name if count == 1 else f"{term.name}.{count}")
    return tuple(own), names


def check_call(inputs: Any, targets: Any, unlabelled: Any, items: Any, labels: Any, foreign: Mapping[str, Any]) -> None:
    """Refuse what an objective cannot be called with."""
    if foreign or labels is not None or inputs is None:
        seen = ", ".join([*foreign, *(() if labels is None else ("labels",))]) or "no inputs"
        raise TypeError(
            f"an objective is called with (inputs, targets), got {seen}: keyword inputs of a model go in one mapping. For Hugging "
            "Face's Trainer use sparring.integrations.transformers.SparringTrainer(model=model, recipe=...)"
        )
    if isinstance(items, float | int) and not items > 0:
        raise ValueError(f"items={items}: the number of examples (or tokens) in all accumulated batches, more than 0")
    if unlabelled is not None and targets is None:
        raise ValueError("unlabelled= goes beside labelled examples; without targets pass everything as inputs")


def check_loss(total: Tensor, model: nn.Module) -> None:
    """Refuse a loss that trains nothing."""
    if torch.is_grad_enabled() and not total.requires_grad and any(p.requires_grad for p in model.parameters()):
        raise RuntimeError(
            "the loss depends on no parameter of the model: its outputs are detached, or the forward pass runs under no_grad"
        )
