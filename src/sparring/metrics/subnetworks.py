"""Looking at the sub-networks that dropout masks cut out: how accurate they are, which units an adversary takes."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..objective import Objective
from ..passes.layout import still_statistics
from ..passes.one import Pass
from ..passes.step import Step, logits_of
from ..penalties import Penalty, full_precision, js
from ..players import Bernoulli
from ..players.player import Player
from ..sites.site import Site, Slot
from ..terms import Playable, Term


@dataclass
class Perturbed:
    """A batch under a player: what it placed and what that did.

    Attributes:
        values: what it placed, one tensor per slot.
        divergence: the penalty it reached (B,).
        clean: outputs of the clean pass.
        perturbed: outputs under the placed values.
    """

    values: list[Tensor] = field(default_factory=list)
    divergence: Tensor = field(default_factory=lambda: torch.empty(0))
    clean: Tensor = field(default_factory=lambda: torch.empty(0))
    perturbed: Tensor = field(default_factory=lambda: torch.empty(0))


@dataclass(frozen=True)
class _Listener(Playable):
    """A term that notes what its player placed and what that did."""

    term: Term
    found: Perturbed
    name: str = "listener"

    @property
    def sites(self) -> tuple[Site, ...]:  # type: ignore[override]
        return self.term.sites

    @property
    def label_free(self) -> bool:  # type: ignore[override]
        return self.term.label_free

    def play(self, step: Step) -> Tensor | None:
        charge = self.term.play(step)
        assert step.last is not None
        assert self.term.at is not None
        slots: list[Slot] = step.last.slots[self.term.at]
        self.found.values = [slot.placed.detach() for slot in slots if slot.placed is not None]
        self.found.clean = step.outputs.detach()
        with torch.no_grad():
            self.found.perturbed = step.run({self.term.at: self.found.values}, graph="none")
        assert charge is not None
        self.found.divergence = charge.detach()
        return charge


@torch.no_grad()
def perturb(
    model: nn.Module,
    inputs: Any,
    site: Site,
    player: Player,
    penalty: Penalty = js,
    outputs: Callable[[Any], Tensor] | None = None,
) -> Perturbed:
    """Let a player respond to a model as it is: nothing is trained, nothing stays behind.

    >>> import sparring as sp
    >>> model = nn.Sequential(nn.Linear(4, 20), nn.Tanh(), nn.Dropout(0.5), nn.Linear(20, 3)).eval()
    >>> found = perturb(model, torch.randn(6, 4), sp.Mask(keep=1.0), sp.GreedyFlip(sp.Flips(0.2)))
    >>> [int(n) for n in (found.values[0] == 0).sum(1).unique()][-1] <= 4
    True

    Args:
        model: in the mode (train, eval) in which it shall be looked at.
        inputs: as the model takes them.
        site: where the player acts.
        player: for example `GreedyFlip(Flips(0.03), steps=2)`.
        penalty: what it raises.
        outputs: from what the model returns to its logits.
    """
    found = Perturbed()
    listener = _Listener(Term(site, player, penalty), found)
    with still_statistics(model):
        Objective(model, _no_loss, listener, outputs=outputs)(inputs)
    return found


def _no_loss(outputs: Tensor, targets: Any) -> Tensor:
    raise AssertionError("there are no targets here")


@dataclass(frozen=True)
class Subnetworks:
    """Accuracies of sub-networks, one number each: (N,) random and (N,) adversarial."""

    random: Tensor
    adversarial: Tensor


@torch.no_grad()
def subnetwork_accuracies(
    model: nn.Module,
    inputs: Any,
    targets: Tensor,
    site: Site,
    player: Player,
    keep: float = 0.97,
    count: int = 500,
    penalty: Penalty = js,
    outputs: Callable[[Any], Tensor] | None = None,
) -> Subnetworks:
    """Test accuracy of `count` random and `count` adversarial sub-networks (Fig. 3).

    A random sub-network is one mask with keep rate `keep`, used on the whole test set. An adversarial one gives every example
    the mask that the player finds for it from a fresh random start; the player sees no labels.

    >>> import sparring as sp
    >>> model = nn.Sequential(nn.Linear(4, 20), nn.Tanh(), nn.Dropout(0.5), nn.Linear(20, 3)).eval()
    >>> x, y = torch.randn(6, 4), torch.randint(3, (6,))
    >>> found = subnetwork_accuracies(model, x, y, sp.Mask(keep=1.0), sp.GreedyFlip(sp.Flips(0.2)), count=5)
    >>> found.random.shape, found.adversarial.shape
    (torch.Size([5]), torch.Size([5]))
    """
    extract, bernoulli = outputs or logits_of, Bernoulli(keep, shared=True)

    def accuracy(logits: Tensor) -> Tensor:
        predicted = logits.argmax(-1)
        if predicted.shape != targets.shape:
            raise ValueError(f"the model predicts {tuple(predicted.shape)} classes for targets {tuple(targets.shape)}")
        return (predicted == targets).double().mean()

    random = [accuracy(extract(Pass(model, (site,), {site: bernoulli.draw}).run(inputs))) for _ in range(count)]
    adversarial = [accuracy(perturb(model, inputs, site, player, penalty, outputs).perturbed) for _ in range(count)]
    return Subnetworks(torch.stack(random), torch.stack(adversarial))


@torch.no_grad()
def mean_adversarial_mask(
    model: nn.Module,
    inputs: Any,
    site: Site,
    player: Player,
    penalty: Penalty = js,
    outputs: Callable[[Any], Tensor] | None = None,
) -> list[Tensor]:
    """How often each unit survives the adversary, averaged over a test set: (H,) per slot; one row of Fig. 4.

    Call it once per epoch and stack the rows: an even picture means that no unit is relied on more than others.
    """
    values = perturb(model, inputs, site, player, penalty, outputs).values
    return [(value != 0).double().mean(0) for value in values]


@dataclass(frozen=True)
class Decomposition:
    """Remark 1: the expected squared distance between a sub-network and its adversary, taken apart (per example).

    Attributes:
        variance: of the outputs over base masks, summed over outputs: term (1), shared with fraternal dropout.
        adversarial_variance: of the outputs under the adversary's masks.
        covariance: between the two: term (2).
        mean_gap: squared distance of the two means: term (3).
    """

    variance: Tensor
    adversarial_variance: Tensor
    covariance: Tensor
    mean_gap: Tensor

    @property
    def total(self) -> Tensor:
        """`E ||p(e) - p(e_adv)||^2`, exactly."""
        return self.variance + self.adversarial_variance - 2 * self.covariance + self.mean_gap


def decompose(base: Tensor, adversarial: Tensor) -> Decomposition:
    """Remark 1 for outputs (S, ..., M) under S equally likely base masks and under the adversary's answer to each.

    >>> p, q = torch.rand(50, 3, dtype=torch.float64), torch.rand(50, 3, dtype=torch.float64)
    >>> bool(torch.isclose(decompose(p, q).total, (p - q).square().sum(-1).mean(0)))
    True
    """
    p, q = base - base.mean(0), adversarial - adversarial.mean(0)
    gap = (base.mean(0) - adversarial.mean(0)).square().sum(-1)
    return Decomposition(p.square().mean(0).sum(-1), q.square().mean(0).sum(-1), (p * q).mean(0).sum(-1), gap)


@torch.no_grad()
def dropout_decomposition(
    model: nn.Module,
    inputs: Any,
    site: Site,
    player: Player,
    samples: int = 20,
    penalty: Penalty = js,
    outputs: Callable[[Any], Tensor] | None = None,
) -> Decomposition:
    """Remark 1 measured on a model: probabilities under random base masks and under the adversary's answers.

    Args:
        site: must draw its base mask, for example `Recurrent("lstm", keep=0.9)`.
        samples: how many base masks.
    """
    pairs = []
    for _ in range(samples):
        found = perturb(model, inputs, site, player, penalty, outputs)
        pairs.append((full_precision(found.clean).softmax(-1), full_precision(found.perturbed).softmax(-1)))
    return decompose(torch.stack([p for p, _ in pairs]).double(), torch.stack([q for _, q in pairs]).double())
