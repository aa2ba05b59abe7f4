"""The objective: a clean pass, players that respond to it, penalties that add up."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .late import Questions, listening
from .nn.randomness import devices_of
from .passes.ground import Ground
from .passes.joint import joined
from .passes.layout import Layout
from .passes.masks import Masks, ValidMask, ignored_label
from .passes.means import Items, Reduction
from .passes.places import elsewhere
from .passes.step import Step, logits_of
from .passes.wrapped import wrapper_of
from .terms.checks import apart, check_call, check_loss, check_model, check_terms
from .terms.interaction import GATES, measure
from .terms.playable import Leading, Playable
from .terms.ranks import check_ranks
from .terms.shares import ClassShares
from .terms.sums import Parts, summed

__all__ = ["Objective"]


class Objective(nn.Module):
    """A training loss made of a supervised loss and any number of terms that share one clean pass.

    >>> import sparring as sp
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    >>> term = sp.Term(at=sp.Output("0"), by=sp.PGD(sp.L2(0.5)), penalty=sp.kl)
    >>> objective = sp.Objective(model, sp.cross_entropy, term)
    >>> loss = objective(torch.randn(6, 4), torch.randint(3, (6,)))
    >>> loss.backward()
    >>> round(objective.diagnostics["pgd/norm"], 3)
    0.5

    `a + b` puts two objectives over the same model together: one clean pass, each term as it was, the supervised loss once.

    Args:
        model: any module; called with the inputs: a tensor, a tuple (positional) or a mapping (keywords).
        loss: per-example supervised loss, `loss(outputs, targets) -> (B,)`.
        terms: `Term`s, or any other `Playable`.
        outputs: from what the model returns to the tensor of outputs; by default the tensor itself or its `.logits`.
        valid: function from the inputs to the padding mask, where it is not given with each call. `attention_mask` and
            `decoder_attention_mask` among keyword inputs are found by themselves.
        reduction: "examples" gives every example the same weight, "tokens" every position that counts (as Hugging Face's own losses).
        separate: labelled and unlabelled examples go through the model apart. None: where batch norm would mix them.
        measure_noise_every: every that many steps, also charge random noise of the player's own norm (0: never).
        measure_interaction_every: every that many steps, compare the derivative through unrolled players with the objective's own
            gradient; 0 does so in training steps 1, 10 and 100 only. A measured step costs about one more backward pass for each.
        replay: use prefix replay; switch it off only to check that it changes nothing.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[..., Tensor],
        *terms: Playable,
        outputs: Callable[[Any], Tensor] | None = None,
        valid: Callable[[Any], ValidMask] | None = None,
        reduction: Reduction = "examples",
        separate: bool | None = None,
        measure_noise_every: int = 0,
        measure_interaction_every: int = 0,
        replay: bool = True,
    ) -> None:
        super().__init__()
        if reduction not in ("examples", "tokens"):
            raise ValueError(f'Objective(reduction={reduction!r}): choose "examples" or "tokens"')
        check_model(model, loss)
        check_terms(terms, model)
        self.model = model
        self.loss = loss
        self.terms, self._names = apart(terms)
        self.options: dict[str, Any] = {
            "outputs": outputs,
            "valid": valid,
            "reduction": reduction,
            "separate": separate,
            "measure_noise_every": measure_noise_every,
            "measure_interaction_every": measure_interaction_every,
            "replay": replay,
        }
        self._measured = [
            (name, self.options[f"{name}_every"])
            for name in ("measure_noise", "measure_interaction")
            if self.options[f"{name}_every"]
        ]
        self.stateful = nn.ModuleList(term for term in self.terms if isinstance(term, nn.Module))
        self.number = 0
        self._ground = Ground(devices=devices_of(model))
        self._notes: dict[str, Any] = {}
        self._counted: Tensor | int | None = None
        self._shares = ClassShares()
        self._questions = Questions()
        self._warned = False

    # -- asking for losses -------------------------------------------------------------------------------------

    def forward(
        self,
        inputs: Any = None,
        targets: Any = None,
        valid: ValidMask = None,
        unlabelled: Any = None,
        *,
        unlabelled_valid: ValidMask = None,
        items: Items = None,
        part: int | None = None,
        labels: Any = None,
        **foreign: Any,
    ) -> Tensor:
        """The loss of one batch, a scalar.

        Args:
            inputs: what the model takes.
            targets: what the loss takes; None keeps the terms that need no labels.
            valid: False on padding, (B, T); or masks by slot-name pattern, "source", "target" and "outputs" where lengths differ.
            unlabelled: more inputs without targets, for the terms that need none; averaged on their own and added.
            unlabelled_valid: the padding mask of those.
            items: with gradient accumulation, the number of labelled examples (or tokens) in all the batches that are accumulated:
                the loss is weighted by this batch's share of them, so that the sum over the batches is the loss of one large batch.
                "ranks": where processes have batches of different lengths, their mean length divides every sum, so that averaged
                gradients are those of the mean over all examples (or tokens).
            part: which of a training step's losses, for methods that have several; None: all of them in one.
            labels: never taken. Hugging Face's Trainer only hands over what a signature names, and is told what to write.
        """
        check_call(inputs, targets, unlabelled, items, labels, foreign)
        batch = inputs, targets, valid, unlabelled, unlabelled_valid, items, part
        try:
            if len(self._ground.devices) == 1 and not self._questions.waiting:
                return self._evaluate(*batch)  # on the CPU every question is answered at once
            self._questions.settle()
            with listening(self._questions if self.number else None):
                return self._evaluate(*batch)
        except RuntimeError as error:
            where = elsewhere(error, self.model, inputs=inputs, targets=targets, valid=valid, unlabelled=unlabelled)
            if where:
                raise ValueError(where) from error
            raise

    def _evaluate(
        self,
        inputs: Any,
        targets: Any,
        valid: ValidMask,
        unlabelled: Any,
        unlabelled_valid: ValidMask,
        items: Items,
        part: int | None,
    ) -> Tensor:
        terms = self._active(targets)
        check_ranks(self, self.model, terms, self.options)
        leader = terms[0] if terms and isinstance(terms[0], Leading) else None
        batch = None
        if leader is not None:
            total, step = leader.lead(
                lambda: self.begin(inputs, targets, valid, terms, items=items, speaker=self._name(leader)), part
            )
        else:
            if unlabelled is not None and self._joins(terms):
                batch = joined(inputs, unlabelled, valid, unlabelled_valid)
            if batch is not None:
                step = self.begin(batch.inputs, targets, batch.valid, terms, items=items, labelled=batch.labelled)
            else:
                step = self.begin(inputs, targets, valid, terms, items=items)
            total = self._settle(step, terms)
        if unlabelled is not None and batch is None:
            total = self._with_unlabelled(total, step, unlabelled, unlabelled_valid, items)
        elif batch is not None:
            self._shares.add(step.outputs[batch.labelled :])
        if items is not None and not isinstance(items, str):
            total = total * (step.share / items)
        self._finish(step, total)
        return total

    def steps(
        self,
        inputs: Any,
        targets: Any = None,
        valid: ValidMask = None,
        unlabelled: Any = None,
        items: Items = None,
    ) -> Iterator[Tensor]:
        """The losses of one training step, to be back-propagated one after the other; the arguments are those of a call.

        Inside `DistributedDataParallel` every loss goes through the wrapper, so that gradients are synchronised.
        """
        ask = wrapper_of(self) or self
        given = {} if unlabelled is None else {"unlabelled": unlabelled}
        given |= {} if items is None else {"items": items}
        parts = self.parts(targets)
        if parts == 1:
            yield ask(inputs, targets, valid, **given)
            return
        for part in range(parts):
            yield ask(inputs, targets, valid, part=part, **given)

    @property
    def update_each_loss(self) -> bool:
        """Whether the optimiser steps after every loss of `steps`, instead of once after the last."""
        return any(isinstance(term, Leading) and term.update_each_loss and not term.idle for term in self.terms)

    @property
    def counted(self) -> Tensor | int | None:
        """How many examples, or tokens, the last loss is a mean over, the unlabelled ones aside; None before the first call.

        Times its count a loss is a sum: with it a training loop can weigh the batches that it accumulates. A tensor where
        there is a mask, so that nobody waits for the device.
        """
        return self._counted

    @property
    def diagnostics(self) -> dict[str, float]:
        """Plain floats about the last call: every term, how far its player moved, passes spent."""
        self._questions.settle(wait=True)
        found = {_key(key): float(value() if callable(value) else value) for key, value in self._notes.items()}
        return found | self._shares.diagnostics()

    def __add__(self, other: "Objective") -> "Objective":
        """Both at once: one clean pass, each term as it was, the supervised loss counted once."""
        if not isinstance(other, Objective):
            return NotImplemented
        if self.model is not other.model:
            raise ValueError("a + b needs two objectives over the same model, and these hold different ones")
        both = summed(Parts(self.loss, self.terms, self.options), Parts(other.loss, other.terms, other.options))
        return Objective(self.model, both.loss, *both.terms, **both.options)

    # -- inside ------------------------------------------------------------------------------------------------

    def begin(
        self,
        inputs: Any,
        targets: Any,
        valid: ValidMask,
        terms: Sequence[Playable],
        *,
        items: Items = None,
        labelled: int | None = None,
        speaker: str = "",
    ) -> Step:
        """A step with its tapes laid out, before any pass."""
        if torch.is_inference_mode_enabled():
            raise RuntimeError(
                "players need gradients: evaluate an objective under torch.no_grad(), not inference_mode()"
            )
        sites = terms[0].sites if len(terms) == 1 else tuple(dict.fromkeys([s for term in terms for s in term.sites]))
        model, ground = self.model, self._ground
        layout = ground.look(model, sites)
        if valid is None and self.options["valid"] is not None:
            valid = self.options["valid"](inputs)
        masks = Masks.of(valid, inputs, targets, bool(ground.sides), ignored_label(self.loss), labelled is not None)
        step = Step(
            model,
            inputs,
            targets,
            sites,
            self.loss,
            self.options["outputs"] or logits_of,
            masks,
            ground.devices,
            layout,
            ground.sides,
            self.number,
            labelled,
            self.options["reduction"],
            items,
            ground.tapes(term.sites for term in terms) if sites and self.options["replay"] else {},
            speaker=speaker,
            memory=ground.memory,
        )
        for measured, every in self._measured:
            if self.number % every == 0:
                step.cache[measured] = True
        return step

    def _settle(self, step: Step, terms: Sequence[Playable]) -> Tensor:
        """What is left of the clean loss plus every term's charge, each its own mean."""
        replaced, blind = 0.0, True
        for term in terms:
            replaced += term.replaces
            blind = blind and term.blind
        weight = 1.0 - replaced
        total: Tensor | None = None
        if weight or not blind:
            step.begin(alone=not terms)
        clean = step.clean_loss()
        if clean is not None:
            step.notes["clean_loss"] = step.value(clean)
            if weight:
                total = clean if weight == 1 else weight * clean
        for term in terms:
            step.speaker = self._name(term)
            charge = term.play(step)
            if charge is not None:
                charge = step.average(charge)
                total = charge if total is None else total + charge
        return step.outputs.sum() * 0.0 if total is None else total

    def _with_unlabelled(self, total: Tensor, step: Step, inputs: Any, valid: ValidMask, items: Any) -> Tensor:
        """Add the label-free terms on examples without labels, in passes of their own."""
        terms = [term for term in self.terms if not term.idle and term.label_free]
        step.notes["unlabelled_used"] = float(bool(terms))
        if not terms:
            return total
        apart = self.begin(inputs, None, valid, terms, items=items, speaker=self._name(terms[0]))
        if isinstance(terms[0], Leading):
            more, apart = terms[0].lead(lambda: apart, None)
        else:
            more = self._settle(apart, terms)
        if apart.clean is not None:
            self._shares.add(apart.outputs)
        step.notes.update({f"unlabelled/{key}": value for key, value in apart.notes.items()})
        step.forward_passes += apart.forward_passes
        step.backward_passes += apart.backward_passes
        step.cache.setdefault(GATES, []).extend(apart.cache.get(GATES, ()))
        return total + more

    def _joins(self, terms: Sequence[Playable]) -> bool:
        """Whether one pass may carry labelled and unlabelled examples together."""
        separate = self.options["separate"]
        if not terms or not all(term.joint for term in terms):
            return False
        if separate is None:
            return not Layout.of(self.model, (), self._ground.layout).batch_statistics
        return not separate

    def _finish(self, step: Step, total: Tensor) -> None:
        check_loss(total, self.model)
        own = self.__dict__  # past nn.Module.__setattr__, which would look for parameters and modules first
        if GATES in step.cache:
            own["_warned"] = measure(step, total, self._warned) or self._warned
        step.put_back()
        step.notes["loss"] = step.value(total)
        step.tapes.clear()
        step.cache.clear()
        step.notes["forward_passes"] = step.forward_passes
        step.notes["backward_passes"] = step.backward_passes + 1
        own["_notes"] = step.notes
        own["_counted"] = step.means.counted
        if self.training:
            own["number"] += 1

    def _name(self, term: Playable) -> str:
        for name, other in zip(self._names, self.terms):
            if other is term:
                return name
        raise KeyError(term)

    def parts(self, targets: Any = None) -> int:
        """How many losses a training step has: one for almost every method."""
        terms = self._active(targets)
        return terms[0].parts if terms and isinstance(terms[0], Leading) else 1

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

    def get_extra_state(self) -> Tensor:
        return torch.tensor(self.number)

    def set_extra_state(self, state: Tensor) -> None:
        self.number = int(state)


def _key(key: str) -> str:
    """A name that every logger accepts.

    >>> _key("vat/keep/Layer 1")
    'vat/keep/layer_1'
    """
    return re.sub(r"[^a-z0-9_./-]", "_", key.lower())
