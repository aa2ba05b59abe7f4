"""SMART's Bregman proximal term: stay close to a slow average of your own weights."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ..nn.randomness import drawing_from
from ..nn.updates import Updates
from ..passes.layout import still_statistics
from ..passes.one import Arguments, call
from ..passes.ranks import is_sharded, other_values, shard_again
from ..passes.step import Step
from ..penalties import Penalty, symmetric_kl
from .playable import Playable


class Proximal(nn.Module, Playable):
    """Charges the distance between the model's clean outputs and those of an exponential average of its weights.

    Jiang et al. 2020, eq. 4-6: mu * mean_i D(f(x_i; theta), f(x_i; theta~)), theta~ <- beta theta~ + (1 - beta) theta after every
    update. The average moves once per change of the parameters, so gradient accumulation does not move it twice.

    Args:
        model: whose weights are averaged (not owned: parameters are not listed twice).
        weight: mu.
        penalty: D, the symmetric KL by default.
        decay: beta, or a function of the number of updates so far (SMART: .99 at first, then .999).
    """

    name = "proximal"
    label_free = True
    updates: Tensor

    def __init__(
        self,
        model: nn.Module,
        weight: float = 1.0,
        penalty: Penalty = symmetric_kl,
        decay: float | Callable[[int], float] = 0.99,
    ) -> None:
        super().__init__()
        self.weight, self.penalty, self.decay = weight, penalty, decay
        self.names = [name for name, p in model.named_parameters() if p.requires_grad]
        self._followed = (model,)  # a tuple hides the model from parameters(), and copies follow their own copy
        for index, parameter in enumerate(self._parameters_of()):
            self.register_buffer(f"average{index}", parameter.detach().clone())
        self.register_buffer("updates", torch.zeros((), dtype=torch.long))
        self._watch: Updates | None = None
        self._model_loaded = self._averages_loaded = False  # since the last look
        model.register_load_state_dict_post_hook(self._model_was_loaded)

    @property
    def idle(self) -> bool:  # type: ignore[override]
        return self.weight == 0

    def _parameters_of(self) -> list[Tensor]:
        shard_again(self._followed[0])
        return [self._followed[0].get_parameter(name) for name in self.names]

    @property
    def averages(self) -> dict[str, Tensor]:
        """The slow weights by parameter name."""
        return {name: self.get_buffer(f"average{index}") for index, name in enumerate(self.names)}

    @torch.no_grad()
    def follow(self) -> None:
        """Move the average towards the parameters, if they changed since the last time."""
        parameters = self._parameters_of()
        for parameter, average in zip(parameters, self.averages.values(), strict=True):
            if is_sharded(parameter) != is_sharded(average):
                raise RuntimeError(
                    "the model was sharded after its objective was built, and SMART's averaged weights were not: call "
                    "fully_shard(model) first and build the objective on it"
                )
        first = self._watch is None and not self.updates  # nothing was averaged, whatever became of the weights
        changed = False
        if self._watch is None or self._watch.known != {id(p) for p in parameters}:
            self._watch = Updates(parameters)
        else:
            changed = self._watch.changed()
        if (first or self._model_loaded) and not self._averages_loaded:
            if self.updates:
                warnings.warn(
                    "the model was loaded without its objective: SMART's averaged weights start anew from the loaded ones; "
                    "save and load objective.state_dict() to keep them",
                    stacklevel=2,
                )
            for average, parameter in zip(self.averages.values(), parameters, strict=True):
                average.copy_(parameter)
        elif changed:
            self.updates += 1
            beta = self.decay(int(self.updates)) if callable(self.decay) else self.decay
            torch._foreach_lerp_(list(self.averages.values()), [p.detach() for p in parameters], 1 - beta)
        self._model_loaded = self._averages_loaded = False

    def _model_was_loaded(self, *_: object) -> None:
        self._model_loaded = True
        if self._watch is not None:
            self._watch.changed()  # a load is no update

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        self.follow()  # an update made since the last pass belongs to what is saved
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        self._averages_loaded = all(f"{prefix}average{index}" in state_dict for index, _ in enumerate(self.names))
        if self._watch is not None:
            self._watch.changed()

    def __getstate__(self) -> dict[str, Any]:
        self.follow()
        return self.__dict__ | {"_watch": None}  # a copy's parameters count their changes anew

    def play(self, step: Step) -> Tensor:
        if self.training:
            self.follow()
        step.forward_passes += 1
        back = None if step.held is None else step.held.put()
        try:
            with torch.no_grad(), drawing_from(step.noise), still_statistics(step.model):
                slow = step.extract(self._slow(step))
        finally:
            if back is not None:
                back()
        charge = step.penalty(self.penalty, step.outputs, slow)
        step.note(penalty=step.average(charge.detach()), weight=self.weight)
        return self.weight * charge

    def _slow(self, step: Step) -> Any:
        """What the model returns under the averaged weights."""
        parameters = self._parameters_of()
        if any(map(is_sharded, parameters)):
            with other_values(step.model, parameters, list(self.averages.values())):
                return call(step.model, step.inputs)
        given = Arguments.of(step.inputs)
        return functional_call(step.model, self.averages, given.args, given.kwargs)
