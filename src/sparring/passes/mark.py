"""Has a model changed since a pass? Whatever runs it again later must know."""

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..nn.matching import walk


class Mark:
    """A model's modes, parameters and buffers at a moment; statistics that training-mode batch norm does not use are left out."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.then = _state(model)

    def check(self) -> None:
        """Raise if anything is different now."""
        now = _state(self.model)
        if now == self.then:
            return
        what = next((key for key in now if now[key] != self.then.get(key)), "its modules")
        raise RuntimeError(
            f"the model changed between the loss and its backward pass ({what}), which runs the opponent's steps again. Call "
            "backward() first"
        )


def _state(model: nn.Module) -> dict[str, tuple[object, ...]]:
    found: dict[str, tuple[object, ...]] = {}
    for index, (name, module) in enumerate(walk(model)):
        label = f"{type(module).__name__} {name}".strip()
        found[f"mode of {label} [{index}]"] = (module.training,)
        for key, parameter in module._parameters.items():
            if parameter is not None:
                found[f"parameter {key} of {label} [{index}]"] = (id(parameter), parameter._version)
        if isinstance(module, _BatchNorm) and module.training:
            continue
        for key, buffer in module._buffers.items():
            if buffer is not None:
                found[f"buffer {key} of {label} [{index}]"] = (id(buffer), buffer._version)
    return found


def is_sharded(parameter: torch.Tensor) -> bool:
    """Whether only a part of the parameter lives here (FSDP2, tensor parallelism)."""
    return type(parameter).__name__ == "DTensor" or hasattr(parameter, "_spec")
