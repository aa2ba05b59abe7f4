"""SMART's Bregman proximal term: stay close to a slow average of your own weights."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ..passes.calls import Arguments, still_statistics
from ..passes.randomness import drawing_from
from ..passes.step import Step
from ..penalties import Penalty, symmetric_kl
from ..sites.site import Site


class Proximal(nn.Module):
    """Charges the distance between the model's clean outputs and those of an exponential average of its weights.

    Jiang et al. 2020, eq. 4-6: mu * mean_i D(f(x_i; theta), f(x_i; theta~)), theta~ <- beta theta~ + (1 - beta) theta after every
    update. The average moves once per change of the parameters, so gradient accumulation does not move it twice.

    Args:
        model: whose weights are averaged (not owned: parameters are not listed twice).
        weight: mu.
        penalty: D, the symmetric KL by default.
        decay: beta, or a function of the number of updates so far (SMART: .99 at first, then .999).
    """

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
        self._seen: tuple[int, ...] | None = None

    name = "proximal"
    updates: Tensor
    sites: tuple[Site, ...] = ()
    label_free = True

    @property
    def idle(self) -> bool:
        return self.weight == 0

    def _parameters_of(self) -> list[Tensor]:
        return [self._followed[0].get_parameter(name) for name in self.names]

    @property
    def averages(self) -> dict[str, Tensor]:
        """The slow weights by parameter name."""
        return {name: self.get_buffer(f"average{index}") for index, name in enumerate(self.names)}

    @torch.no_grad()
    def follow(self) -> None:
        """Move the average towards the parameters, if they changed since the last time."""
        parameters = self._parameters_of()
        versions = tuple(p._version for p in parameters)
        if self._seen is not None and versions != self._seen:
            self.updates += 1
            beta = self.decay(int(self.updates)) if callable(self.decay) else self.decay
            torch._foreach_lerp_(list(self.averages.values()), [p.detach() for p in parameters], 1 - beta)
        self._seen = versions

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        self.follow()  # an update made since the last pass belongs to what is saved
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def __getstate__(self) -> dict[str, Any]:
        self.follow()
        return self.__dict__ | {"_seen": None}  # a copy's parameters count their changes anew

    def play(self, step: Step) -> Tensor:
        if self.training:
            self.follow()
        step.forward_passes += 1
        with torch.no_grad(), drawing_from(step.noise), still_statistics(step.model):
            args, kwargs = _arguments(step.inputs)
            slow = step.extract(functional_call(step.model, self.averages, args, kwargs))
        charge = step.penalty(self.penalty, step.outputs, slow)
        step.note(self.name, penalty=charge.detach().mean(), weight=self.weight)
        return self.weight * charge


def _arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(inputs, Arguments):
        return inputs.args, inputs.kwargs
    if isinstance(inputs, tuple):
        return inputs, {}
    return ((), dict(inputs)) if hasattr(inputs, "keys") else ((inputs,), {})
