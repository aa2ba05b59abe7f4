"""The objective: a clean pass, players that respond to it, penalties that add up."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .passes.calls import Layout
from .passes.randomness import devices_of
from .passes.replay import Tape, eager_modules, is_compiled
from .passes.step import Step, ValidMask, logits_of
from .sites.site import Site
from .terms.term import Playable, Term, Weight

__all__ = ["Objective", "Playable", "Term", "Weight"]


class Objective(nn.Module):
    """A training loss made of a supervised loss and any number of terms that share one clean pass.

    >>> import sparring as sp
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    >>> term = sp.Term(at=sp.Output("0"), by=sp.PGD(sp.L2(0.5)), penalty=sp.kl)
    >>> objective = sp.Objective(model, sp.cross_entropy, term)
    >>> loss = objective(torch.randn(6, 4), torch.randint(3, (6,)))
    >>> loss.backward()
    >>> round(objective.diagnostics["PGD@0/norm"], 3)
    0.5

    Args:
        model: any module; called with the inputs: a tensor, a tuple (positional) or a mapping (keywords).
        loss: per-example supervised loss, `loss(outputs, targets) -> (B,)`.
        terms: `Term`s, or anything that plays like one.
        outputs: from what the model returns to the tensor of outputs; by default the tensor itself or its `.logits`.
        clean_weight: factor of the supervised loss on the clean pass.
        valid: function from the inputs to the padding mask, where it is not given with each call. An `attention_mask` among keyword
            inputs is found by itself.
        measure_noise_every: every that many steps, also charge random noise of the player's own norm (0: never).
        replay: use prefix replay; switch it off only to check that it changes nothing.
    """

    update_each_loss = False
    calls: Tensor

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[..., Tensor],
        *terms: Playable,
        outputs: Callable[[Any], Tensor] | None = None,
        clean_weight: float = 1.0,
        valid: Callable[[Any], ValidMask] | None = None,
        measure_noise_every: int = 0,
        replay: bool = True,
    ) -> None:
        super().__init__()
        self.model = model
        self.loss = loss
        self.terms = _renamed(terms)
        self.extract = outputs or logits_of
        self.clean_weight = clean_weight
        self.valid = valid
        self.measure_noise_every = measure_noise_every
        self.replay = replay
        self.stateful = nn.ModuleList(term for term in self.terms if isinstance(term, nn.Module))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        for term in self.terms:
            for site in term.sites:
                _check_reachable(site, model)
            if getattr(getattr(term, "by", None), "unroll", False) == "autograd" and any(
                map(is_compiled, model.modules())
            ):
                raise ValueError(
                    'unroll="autograd" differentiates twice, which compiled modules do not support: '
                    'use unroll="finite_difference", or the module before torch.compile'
                )
        self._without_prefix: set[frozenset[Site]] = set()
        self._layout: Layout | None = None
        self._notes: dict[str, Any] = {}

    def forward(self, inputs: Any, targets: Any = None, valid: ValidMask = None) -> Tensor:
        """The loss of one batch, a scalar.

        Args:
            inputs: what the model takes.
            targets: what the loss takes; None keeps the terms that need no labels.
            valid: False on padding, (B, T); or masks by slot-name pattern and "outputs" where lengths differ.
        """
        terms = self._active(targets)
        step = self.begin(inputs, targets, valid, terms)
        if self.clean_weight == 0 and terms and all(getattr(term, "blind", False) for term in terms):
            total = self._blind(step, terms)
        else:
            step.begin()
            total = self._settle(step, terms)
        self._finish(step, total)
        return total

    def steps(self, inputs: Any, targets: Any = None, valid: ValidMask = None) -> Iterator[Tensor]:
        """The losses of one training step, to be back-propagated one after the other."""
        yield self(inputs, targets, valid)

    @property
    def diagnostics(self) -> dict[str, float]:
        """Plain floats about the last call: every term, how far its player moved, passes spent."""
        return {key: float(value) for key, value in self._notes.items()}

    def begin(self, inputs: Any, targets: Any, valid: ValidMask, terms: Sequence[Playable]) -> Step:
        """A step with its tapes laid out, before any pass."""
        if torch.is_inference_mode_enabled():
            raise RuntimeError(
                "players need gradients: evaluate an objective under torch.no_grad(), not inference_mode()"
            )
        sites = tuple(dict.fromkeys(site for term in terms for site in term.sites))
        groups = (
            {frozenset(term.sites) for term in terms if term.sites} - self._without_prefix if self.replay else set()
        )
        step = Step(
            self.model, inputs, targets, sites, self.loss, self.extract, self._masks(inputs, valid), devices_of(self.model),
            int(self.calls) if any(callable(getattr(t, "weight", None)) for t in terms) or self.measure_noise_every else 0,
            {group: Tape(group) for group in groups}, known=self._layout,
        )  # fmt: skip
        if self.measure_noise_every and step.number % self.measure_noise_every == 0:
            step.cache["measure_noise"] = True
        return step

    def _settle(self, step: Step, terms: Sequence[Playable]) -> Tensor:
        """Clean loss plus every term's charge, each the mean over the batch."""
        total: Tensor | None = None
        weight = self.clean_weight if terms else 1.0  # with every term at rest the objective is the plain loss
        if step.losses is not None:
            clean = step.losses.mean()
            step.notes["clean_loss"] = clean.detach()
            if weight:
                total = clean if weight == 1 else weight * clean
        for term in terms:
            charge = term.play(step)
            if charge is not None:
                total = charge.mean() if total is None else total + charge.mean()
        return step.outputs.sum() * 0.0 if total is None else total

    def _blind(self, step: Step, terms: Sequence[Playable]) -> Tensor:
        total: Tensor | None = None
        for term in terms:
            assert isinstance(term, Term)
            outputs = step.run({term.at: term.by.draw}, noise=None, moves_statistics=True)  # type: ignore[dict-item, union-attr]
            charge = term.settle(step, None, outputs, term.at_step(step.number)).mean()
            total = charge if total is None else total + charge
        assert total is not None
        return total

    def _finish(self, step: Step, total: Tensor) -> None:
        step.notes["loss"] = total.detach()
        for group, tape in step.tapes.items():
            if not tape.entries:
                self._without_prefix.add(group)
        step.tapes.clear()
        step.cache.clear()
        passes = {"forward_passes": step.forward_passes, "backward_passes": step.backward_passes + 1}
        self._notes, self._layout = step.notes | passes, step.layout
        if self.training:
            self.calls += 1

    def _active(self, targets: Any) -> list[Playable]:
        terms = [term for term in self.terms if not term.idle]
        if targets is not None:
            return terms
        free = [term for term in terms if term.label_free]
        if not free:
            raise ValueError(
                "targets are missing: without them only terms with a penalty (kl, js, ...) can be computed, and there is none"
            )
        return free

    def _masks(self, inputs: Any, valid: ValidMask) -> ValidMask:
        if valid is None and self.valid is not None:
            valid = self.valid(inputs)
        if valid is None and isinstance(inputs, Mapping):
            mask = inputs.get("attention_mask")
            valid = mask.bool() if isinstance(mask, Tensor) and mask.dim() == 2 else None
        return valid


def _check_reachable(site: Site, model: nn.Module) -> None:
    """Raise now, with near names or the fix, rather than in the first step."""
    eager = set(eager_modules(model))
    for name, module in site.modules(model).items():
        if module not in eager:
            raise ValueError(
                f"{site}: {name or 'the model'} is compiled, and a compiled module ignores what is placed inside it; "
                "give the objective the module before torch.compile"
            )


def _renamed(terms: Sequence[Playable]) -> tuple[Playable, ...]:
    """Terms of equal name get a number, so that diagnostics keep them apart."""
    seen: dict[str, int] = {}
    result: list[Playable] = []
    for term in terms:
        if not isinstance(term, Playable):
            raise TypeError(
                f"an objective takes terms, got {type(term).__name__}: wrap it as Term(at=..., by=..., penalty=...)"
            )
        count = seen[term.name] = seen.get(term.name, 0) + 1
        if count > 1 and isinstance(term, Term):
            term = Term(**{**term.__dict__, "name": f"{term.name}.{count}"})
        result.append(term)
    return tuple(result)
