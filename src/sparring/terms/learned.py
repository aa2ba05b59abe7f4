"""The two terms of learned dropout: an estimated gradient for the rates, and the KL from their prior."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..estimators.antithetic import ARM
from ..estimators.enumeration import Enumerate
from ..estimators.sampling import Estimator, surrogate
from ..nn import BernoulliDropout, ConcreteDropout, Consumers, GaussianDropout, dropout_kl, find_consumers
from ..nn.matching import match
from ..penalties import full_precision
from ..sites import Slot
from ..sites.learned import LearnedMask, draw_of

if TYPE_CHECKING:
    from ..passes.step import Step

Weights = Mapping[str, Tensor | Sequence[Tensor]]


@dataclass(frozen=True)
class LearnedRates:
    """Give the logits of learnable dropout the gradient of the expected supervised loss; adds nothing to its value.

    The clean pass has drawn the masks and trains the model; the estimator asks for the loss under other masks, in
    passes without a graph that start at the first learnable dropout and repeat every other random number.

    >>> from torch import nn
    >>> import sparring as sp
    >>> model = nn.Sequential(nn.Linear(2, 4), sp.nn.BernoulliDropout(4), nn.Linear(4, 2))
    >>> objective = sp.Objective(model, sp.cross_entropy, LearnedRates())
    >>> objective(torch.randn(8, 2), torch.zeros(8, dtype=torch.long)).backward()
    >>> model[1].logits.grad.shape
    torch.Size([4])

    Args:
        at: which `BernoulliDropout` layers, a glob; all by default. Layers in evaluation or frozen are left alone.
        estimator: `ARM()`, `DisARM()`, `LeaveOneOut()`, `Reinforce()` or `Enumerate()`.
        weight: factor of the gradient; the objective's `clean_weight`, if that is not 1.
        joint: credit every mask with the whole batch's loss instead of its own example's. Needed for an unbiased
            estimate where examples interact after a learnable dropout (batch norm in training mode); noisier. Not with
            `Enumerate()` or `Reinforce("batch")`, which look at one example at a time.
        name: how diagnostics call the term.

    Paper: eq. 8.
    """

    at: str = "**"
    estimator: Estimator = field(default_factory=ARM)
    weight: float = 1.0
    joint: bool = False
    name: str = "rates"

    site: LearnedMask = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        per_example = isinstance(self.estimator, Enumerate) or getattr(self.estimator, "baseline", None) == "batch"
        if self.joint and per_example:
            raise ValueError(
                f"joint=True credits the whole batch, which {self.estimator} takes apart; use ARM() or DisARM()"
            )
        object.__setattr__(self, "site", LearnedMask(self.at))

    @property
    def sites(self) -> tuple[LearnedMask, ...]:
        return (self.site,)

    @property
    def idle(self) -> bool:
        return self.weight == 0

    @property
    def label_free(self) -> bool:
        return False

    def play(self, step: "Step") -> Tensor | None:
        """A per-example charge of value zero whose gradient is the estimate."""
        learning = [pair for pair in self._layers(step) if pair[1].training and pair[1].logits.requires_grad]
        if not learning:
            return None
        assert step.losses is not None
        slots = [slot for slot, _ in learning]
        attached = [full_precision(layer.units.place(layer.logits, slot.value)) for slot, layer in learning]
        draws = [draw_of(slot.value) for slot in slots]
        seen: list[Tensor] = []

        def evaluate(masks: list[Tensor]) -> Tensor:
            placed = {}
            for (slot, layer), mask, logits in zip(learning, masks, attached):
                tiny = torch.finfo(logits.dtype).tiny
                placed[slot.name] = mask / torch.sigmoid(logits).clamp_min(tiny) if layer.rescale else mask
            with self.site.repeating(step.slots(self.site)):
                losses = step.loss(step.run({self.site: placed}, graph="none"))
            seen.append(losses)
            return credited(losses)

        def credited(losses: Tensor) -> Tensor:
            return losses.sum().expand_as(losses) if self.joint else losses

        with torch.no_grad():
            masks = [
                (s.value != 0 if d[1].rescale else s.value).to(a.dtype) for s, d, a in zip(slots, learning, attached)
            ]
            known = [draw.uniform for draw in draws if draw is not None]
            losses = credited(step.losses.detach())
            fixed = [a.detach() for a in attached]
            gradients = self.estimator.gradient(
                fixed, masks, losses, evaluate, known if len(known) == len(slots) else None
            )
            gradients = [g if s.valid is None else g * s.valid for g, s in zip(gradients, slots)]
        means = {f"keep/{slot.name}": layer.keep.detach().mean() for slot, layer in learning}
        tried = torch.stack(seen or [step.losses.detach()])  # (masks tried, B)
        step.note(self.name, penalty=tried.mean(), unperturbed=(~tried.isfinite()).sum(), **means)
        return self.weight * surrogate(attached, gradients)

    def _layers(self, step: "Step") -> list[tuple[Slot, BernoulliDropout]]:
        modules = step.layout.matches[self.site]
        found = []
        for slot in step.slots(self.site):
            layer = modules.get(slot.name.partition("#")[0], step.model)
            assert isinstance(layer, BernoulliDropout)
            found.append((slot, layer))
        return found


@dataclass
class DropoutKL:
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
    _found: dict[str, Consumers] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.prior_scale <= 0:
            raise ValueError(f"prior_scale={self.prior_scale} must be positive")
        if self.dataset_size < 1:
            raise ValueError(f"dataset_size={self.dataset_size} must be the number of training examples")

    @property
    def sites(self) -> tuple[()]:
        return ()

    @property
    def idle(self) -> bool:
        return self.weight == 0

    @property
    def label_free(self) -> bool:
        return True

    def play(self, step: "Step") -> Tensor:
        """The weighted KL over N, a scalar; differentiable in the rates and the weights."""
        given = self.weights or {}
        learned = BernoulliDropout | ConcreteDropout | GaussianDropout
        layers = match(step.model, self.at, lambda m: isinstance(m, learned), "learned dropout layer")
        missing = [name for name in layers if name not in given and name not in self._found]
        if missing:
            self._found.update(find_consumers(step.model, missing, step.inputs))
        pieces = []
        for name, layer in layers.items():
            norms = _given_norms(given[name]) if name in given else self._found[name].norms(step.model)
            pieces.append(dropout_kl(layer, norms, self.prior_scale))
        kl = torch.stack(pieces).sum()
        step.note(self.name, penalty=kl.detach() / self.dataset_size)
        return self.weight / self.dataset_size * kl


def _given_norms(weights: Tensor | Sequence[Tensor]) -> Tensor:
    several = [weights] if isinstance(weights, Tensor) else list(weights)
    return torch.stack([w.square().transpose(0, 1).flatten(1).sum(1) for w in several]).sum(0)
