"""The objective: a clean pass, players that respond to it, penalties that add up."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from . import randomness
from .penalties import Penalty
from .players.player import Game, Player, Response
from .randomness import devices_of
from .replay import Tape, eager_modules, is_compiled
from .sites.site import Site, Slot
from .step import Step, ValidMask, logits_of

Weight = float | Callable[[int], float]


@runtime_checkable
class Playable(Protocol):
    """What an objective asks of a term; `Term` is the usual one."""

    @property
    def name(self) -> str: ...
    @property
    def sites(self) -> tuple[Site, ...]: ...
    @property
    def idle(self) -> bool: ...
    @property
    def label_free(self) -> bool: ...
    def play(self, step: Step) -> Tensor | None: ...


@dataclass(frozen=True)
class Term:
    """One perturbation and what is charged for it: where, by whom, how much.

    >>> import sparring as sp
    >>> term = sp.Term(at=sp.Output("embedding"), by=sp.PGD(sp.L2(1.0)), penalty=sp.kl, weight=0.5)
    >>> term.name
    'PGD@embedding'

    Args:
        at: the site, or None for a second pass in which only the noise changes (R-Drop).
        by: the player; None goes with `at=None`.
        penalty: compares clean and perturbed outputs; None charges the supervised loss at the perturbed point.
        weight: factor of the penalty, or a function of the training step (ramp-ups).
        share_noise: the perturbed passes repeat the clean pass's random numbers (dropout); False draws fresh ones, the same for
            all passes of the term.
        detach_clean: no gradient through the clean side of the penalty.
        supervised: factor of the supervised loss at the perturbed point, on top of the penalty (fraternal dropout, R-Drop).
        name: how diagnostics call the term.
    """

    at: Site | None
    by: Player | None
    penalty: Penalty | None = None
    weight: Weight = 1.0
    share_noise: bool = True
    detach_clean: bool = False
    supervised: float = 0.0
    name: str = ""

    def __post_init__(self) -> None:
        if (self.at is None) != (self.by is None):
            raise ValueError(
                "Term(at, by): a site needs a player and a player needs a site; leave out both to compare noise only"
            )
        if self.at is not None and self.by is not None and self.at.kind not in self.by.kinds:
            raise ValueError(
                f"{type(self.by).__name__} plays at {' and '.join(sorted(self.by.kinds))} sites; {self.at} is a site of kind {self.at.kind}"
            )
        if self.at is None and self.share_noise:
            raise ValueError("Term(at=None) compares two passes that differ in noise only: pass share_noise=False")
        if self.penalty is not None and self.share_noise and getattr(self.by, "starts_at_clean", False):
            raise ValueError(
                f"{self.by} starts at the clean point, where a divergence has no slope: start beside it (start=1e-5, xi=0.1)"
            )
        if not self.name:
            place = getattr(self.at, "glob", None) or type(self.at).__name__.lower()
            object.__setattr__(self, "name", "noise" if self.by is None else f"{type(self.by).__name__}@{place}")

    @property
    def sites(self) -> tuple[Site, ...]:
        return () if self.at is None else (self.at,)

    @property
    def idle(self) -> bool:
        return self.weight == 0 or (self.by is not None and self.by.idle)

    @property
    def label_free(self) -> bool:
        return self.penalty is not None

    @property
    def blind(self) -> bool:
        """Needs no clean pass: a random player and the supervised loss."""
        return self.penalty is None and self.at is not None and hasattr(self.by, "draw") and self.share_noise

    def at_step(self, number: int) -> float:
        """The weight at a training step."""
        return float(self.weight(number)) if callable(self.weight) else self.weight

    def play(self, step: Step) -> Tensor | None:
        """Let the player respond, run the perturbed pass, and charge for it: (B,), weighted."""
        weight = self.at_step(step.number)
        if weight == 0:
            return None
        noise = step.noise if self.share_noise else randomness.fresh(step.devices)
        reference = step.outputs.detach() if self.detach_clean else step.outputs

        def placed(values: Sequence[Tensor]) -> dict[Site, list[Tensor]]:
            return {} if self.at is None else {self.at: list(values)}

        def payoff(values: Sequence[Tensor], attached: bool = False, clean: Tensor | None = None) -> Tensor:
            outputs = step.run(
                placed(values), graph="attached" if attached else "detached", noise=noise, replay=clean is None
            )
            if clean is None:
                clean = reference if attached else reference.detach()
            return self._charge(step, clean, outputs)

        values: list[Tensor] = []
        if self.at is not None and self.by is not None:
            slots = [Slot(slot.name, slot.value.detach(), slot.valid) for slot in step.slots(self.at)]
            parameters: list[Tensor] = [p for p in step.model.parameters() if p.requires_grad]
            game = Game(slots, payoff, step.outputs.detach(), reference, parameters, step.batch)
            with torch.enable_grad():
                response = self.by.respond(game)
            values = response.values
            step.backward_passes += response.backward_passes
            self._note_player(step, game, response)
        outputs = step.run(placed(values), noise=noise)
        return self.settle(step, reference, outputs, weight)

    def settle(self, step: Step, clean: Tensor | None, outputs: Tensor, weight: float) -> Tensor:
        """What this term adds to the objective for given perturbed outputs, per example."""
        if self.penalty is None:
            charge = step.loss(outputs)
            total = (weight + self.supervised) * charge
        else:
            assert clean is not None
            charge = step.penalty(self.penalty, clean, outputs)
            total = weight * charge
            if self.supervised and step.targets is not None:
                total = total + self.supervised * step.loss(outputs)
        step.note(self.name, penalty=charge.detach().mean(), weight=weight)
        return total

    def _charge(self, step: Step, clean: Tensor, outputs: Tensor) -> Tensor:
        return step.loss(outputs) if self.penalty is None else step.penalty(self.penalty, clean, outputs)

    def _note_player(self, step: Step, game: Game, response: Response) -> None:
        step.note(self.name, **response.notes)
        if response.unperturbed is not None:
            step.note(self.name, unperturbed=response.unperturbed.sum())
        ball = getattr(self.by, "ball", None)
        if ball is None or not hasattr(ball, "norm"):
            return
        values = [v.detach() for v in response.values]
        norms = torch.stack([ball.norm(v, slot.valid) for v, slot in zip(values, game.slots, strict=True)])
        step.note(self.name, norm=norms.mean(), at_boundary=(norms >= ball.radius * (1 - 1e-4)).float().mean())
        if step.cache.get("measure_noise"):
            rivals = [
                ball.normalise(torch.randn_like(v), s.valid) * n.view(-1, *(1,) * (v.dim() - 1))
                for v, s, n in zip(values, game.slots, norms, strict=True)
            ]
            with torch.no_grad():
                step.note(self.name, noise_penalty=game.payoff(rivals).mean())


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
            if getattr(getattr(term, "by", None), "unroll", False) == "autograd" and any(map(is_compiled, model.modules())):
                raise ValueError(
                    'unroll="autograd" differentiates twice, which compiled modules do not support: '
                    'use unroll="finite_difference", or the module before torch.compile'
                )
        self._without_prefix: set[frozenset[Site]] = set()
        self._step: Step | None = None

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
        if self._step is None:
            return {}
        notes = {key: float(value) for key, value in self._step.notes.items()}
        return notes | {
            "forward_passes": float(self._step.forward_passes),
            "backward_passes": float(self._step.backward_passes + 1),
        }

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
            {group: Tape(group) for group in groups},
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
        self._step = step
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
