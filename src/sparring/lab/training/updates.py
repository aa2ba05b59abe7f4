"""Optimisers, schedules and the one update they make together.

>>> from torch import nn
>>> from sparring.lab.task import DEFAULTS, Setting
>>> setting = Setting("t", "m", "tiny", 0, None, {**DEFAULTS, "schedule": "linear", "warmup": 0.5, "lr": 1.0})
>>> update = Update(nn.Linear(2, 1), setting, total=4, accelerator=Accelerator(cpu=True))
>>> rates = []
>>> for _ in range(4):
...     rates.append(update.optimiser.param_groups[0]["lr"])
...     update(); update.schedule.step()
>>> [round(rate, 3) for rate in rates]
[0.5, 1.0, 1.0, 0.5]
"""

import math
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from ...nn.dropout.rates import clamp_after_step, parameter_groups
from ..errors import LabError
from ..task import Setting
from .averaging import Average
from .gradients import Gradients


def make_optimiser(model: nn.Module, setting: Setting) -> Optimizer:
    """The optimiser the setting names, with a group of its own for learned dropout rates."""
    groups = parameter_groups(model, setting["lr"], setting["rates_lr"], setting["weight_decay"])
    lr = setting["lr"]
    betas = (0.9, setting["beta2"])
    fused = {
        "lr": lr,
        "betas": betas,
        "fused": True,
    }  # on a CPU six times faster, a third of the step of a small transformer
    makers: dict[str, Any] = {
        "adam": lambda: torch.optim.Adam(groups, **fused),
        "amsgrad": lambda: torch.optim.Adam(groups, amsgrad=True, **fused),
        "adamw": lambda: torch.optim.AdamW(groups, **fused),
        "sgd": lambda: torch.optim.SGD(groups, lr=lr, momentum=setting["momentum"]),
        "rmsprop": lambda: torch.optim.RMSprop(groups, lr=lr, alpha=setting["smoothing"]),
    }
    optimiser: Optimizer = makers[setting["optimiser"]]()
    if len(groups) > 1:
        clamp_after_step(optimiser, model)
    return optimiser


def make_schedule(optimiser: Optimizer, setting: Setting, total: int) -> LambdaLR:
    """Warm-up, then the decay the setting names, over `total` updates."""
    warmup, start = setting["warmup"] * total, setting["decay_from"] * total
    start = max(start, warmup)
    floor = setting["lr_end"] / setting["lr"] if setting["lr"] else 0.0
    epochs = max(1.0, setting["epochs"] * (1 - start / max(1, total)))  # of the decay; gaussian goes by whole ones
    shapes = {
        "constant": lambda share, step: 1.0,
        "linear": lambda share, step: 1 - (1 - floor) * share,
        "cosine": lambda share, step: floor + (1 - floor) * (1 + math.cos(math.pi * share)) / 2,
        "exponential": lambda share, step: setting["lr_decay"] ** step,
        "inverse_sqrt": lambda share, step: math.sqrt(max(1.0, warmup) / (step + 1)),  # Vaswani et al. 2017, eq. 3
        "gaussian": lambda share, step: math.exp(-(math.floor(share * epochs + 1e-9) ** 2) / (4 * epochs)),
    }
    shape = shapes[setting["schedule"]]

    def factor(step: int) -> float:
        if step < warmup:
            return min(1.0, (step + 1) / warmup)
        return shape(min(1.0, max(0.0, step - start) / max(1.0, total - start)), step)

    return LambdaLR(optimiser, factor)


class Update:
    """Average the gradients over the processes, clip, step, clear: everything between two backward passes.

    `schedule` counts batches (accumulated ones as one), however many updates a method makes on each.
    """

    def __init__(self, model: nn.Module, setting: Setting, total: int, accelerator: Accelerator) -> None:
        self.model, self.clip, self.clip_value, self.accelerator = (
            model,
            setting["clip"],
            setting["clip_value"],
            accelerator,
        )
        spared = setting["clip_except"]
        self.clipped = [p for name, p in model.named_parameters() if not spared or not name.startswith(spared)]
        if spared and len(self.clipped) == len(list(model.parameters())):
            names = ", ".join(dict.fromkeys(name.partition(".")[0] for name, _ in model.named_parameters()))
            raise LabError(f"clip_except={spared} does not fit; no parameter's name begins so, they begin with {names}")
        self.optimiser = make_optimiser(model, setting)
        self.schedule = make_schedule(self.optimiser, setting, total)
        self.gradients = Gradients(list(model.parameters()), accelerator.num_processes)
        self.average = Average(model, setting["average"], setting["average_patience"], setting["average_epochs"])

    def __call__(self, rate: float = 1.0, items: Tensor | float | None = None) -> None:
        """One update.

        Args:
            rate: a factor of the learning rate for this one.
            items: where losses were sums, what the gradients are divided by to be those of a mean.
        """
        self.gradients.settle()
        if items is not None:
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    parameter.grad.div_(items)
        if self.accelerator.num_processes > 1:
            for buffer in self.model.buffers():  # batch-norm statistics: the main process's for everybody
                torch.distributed.broadcast(buffer, 0)
        if self.clip:
            nn.utils.clip_grad_norm_(self.clipped, self.clip)
        if self.clip_value:
            nn.utils.clip_grad_value_(self.clipped, self.clip_value)
        rates = [group["lr"] for group in self.optimiser.param_groups]
        for group, lr in zip(self.optimiser.param_groups, rates, strict=True):
            group["lr"] = lr * rate
        self.optimiser.step()
        for group, lr in zip(self.optimiser.param_groups, rates, strict=True):
            group["lr"] = lr
        self.optimiser.zero_grad(set_to_none=True)
        self.average.add()

    def state_dict(self) -> dict[str, Any]:
        """What exact resumption needs."""
        schedule = {k: v for k, v in self.schedule.state_dict().items() if k != "lr_lambdas"}
        return {
            "optimiser": self.optimiser.state_dict(),
            "schedule": schedule,
            "average": self.average.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self.optimiser.load_state_dict(state["optimiser"])
        self.average.load_state_dict(state["average"])
        self.schedule.load_state_dict({**state["schedule"], "lr_lambdas": self.schedule.state_dict()["lr_lambdas"]})
