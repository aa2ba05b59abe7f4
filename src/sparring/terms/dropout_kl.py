"""The KL of learned dropout from its prior."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..nn import BernoulliDropout, ConcreteDropout, GaussianDropout, NextLayers, dropout_kl, find_next_layers
from ..nn.matching import match
from ..passes.step import Step
from .playable import Playable

Weights = Mapping[str, Tensor | Sequence[Tensor]]


@dataclass
class DropoutKL(Playable):
    """Charge the KL of learned dropout from its prior, divided by the size of the data set.

    >>> from torch import nn
    >>> import sparring as sp
    >>> model = nn.Sequential(nn.Linear(2, 4), sp.nn.ConcreteDropout(), nn.Linear(4, 2))
    >>> objective = sp.Objective(model, sp.cross_entropy, DropoutKL(prior_scale=1.0, dataset_size=1000))
    >>> objective(torch.randn(8, 2), torch.zeros(8, dtype=torch.long)).backward()
    >>> sorted(objective.diagnostics)[0]
    'backward_passes'

    Args:
        prior_scale: standard deviation s of the weights' Gaussian prior.
        dataset_size: N; the supervised loss is a mean over examples, so the KL is divided by it.
        at: which layers, a glob over Bernoulli, Concrete and Gaussian dropout.
        weights: the consuming weights by layer name, `(out, units, ...)` or several of them; what is not given is found
            from the model (once, on a copy, with the first batch where the structure does not tell).
        weight: factor of the whole term.
        name: how diagnostics call the term.

    Paper: section 2.2, eq. 3.
    """

    prior_scale: float
    dataset_size: int
    at: str = "**"
    weights: Weights | None = None
    weight: float = 1.0
    name: str = "dropout_kl"
    _found: dict[str, NextLayers] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.prior_scale <= 0:
            raise ValueError(f"prior_scale={self.prior_scale} must be positive")
        if self.dataset_size < 1:
            raise ValueError(f"dataset_size={self.dataset_size} must be the number of training examples")

    label_free = True

    @property
    def idle(self) -> bool:  # type: ignore[override]
        return self.weight == 0

    def play(self, step: Step) -> Tensor:
        """The weighted KL over N, a scalar; differentiable in the rates and the weights."""
        given = self.weights or {}
        learned = BernoulliDropout | ConcreteDropout | GaussianDropout
        layers = match(step.model, self.at, lambda m: isinstance(m, learned), "learned dropout layer")
        missing = [name for name in layers if name not in given and name not in self._found]
        if missing:
            self._found.update(find_next_layers(step.model, missing, step.inputs))
        pieces = []
        for name, layer in layers.items():
            norms = _given_norms(given[name]) if name in given else self._found[name].norms(step.model)
            pieces.append(dropout_kl(layer, norms, self.prior_scale))
        kl = torch.stack(pieces).sum()
        step.note(penalty=kl.detach() / self.dataset_size)
        return self.weight / self.dataset_size * kl


def _given_norms(weights: Tensor | Sequence[Tensor]) -> Tensor:
    several = [weights] if isinstance(weights, Tensor) else list(weights)
    return torch.stack([w.square().transpose(0, 1).flatten(1).sum(1) for w in several]).sum(0)
