"""The mean of the weights along the path of an optimiser: averaged SGD, begun by the non-monotone rule.

>>> import torch
>>> from torch import nn
>>> model = nn.Linear(1, 1, bias=False)
>>> average = Average(model, "always")
>>> for value in (1.0, 2.0, 6.0):
...     _ = model.weight.data.fill_(value)
...     average.add()
>>> with average.placed():
...     model.weight.item()
3.0
>>> model.weight.item()
6.0
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


class Average:
    """Running mean of a model's parameters over its updates.

    With SGD this is torch's `ASGD(t0=0, lambd=0)` (whose mean begins one update later); here it goes with any optimiser.

    Args:
        model: whose parameters are averaged.
        when: "never", "always" (from the first update), or "stalled": once the validation score is worse than the best
            one that is more than `patience` epochs old (Merity et al. 2018, algorithm 1). "epochs" is the mean of the
            weights at the end of the last `epochs` epochs instead (Vaswani et al. 2017, section 6.1).
        patience: the rule's interval n.
        epochs: how many.
    """

    def __init__(self, model: nn.Module, when: str = "never", patience: int = 5, epochs: int = 5) -> None:
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.when, self.patience, self.epochs = when, patience, epochs
        self.ends: list[list[Tensor]] = []  # the weights at the end of the last epochs
        self.count = 0
        self.mean: list[Tensor] = []
        self.history: list[float] = []  # validation scores, the smaller the better
        if when == "always":
            self.begin()

    def begin(self) -> None:
        """Average from the next update on."""
        self.mean = [torch.zeros_like(p) for p in self.parameters]

    def add(self) -> None:
        """Take in the weights after an update."""
        if self.mean and self.when != "epochs":
            self.count += 1
            with torch.no_grad():
                for mean, p in zip(self.mean, self.parameters, strict=True):
                    mean.lerp_(p, 1 / self.count)

    def close_epoch(self) -> None:
        """Take in the weights at the end of an epoch."""
        if self.when == "epochs":
            self.ends = [*self.ends, [p.detach().clone() for p in self.parameters]][-self.epochs :]
            self.count = len(self.ends)
            self.mean = [torch.stack(weights).mean(0) for weights in zip(*self.ends, strict=True)]

    def watch(self, score: float) -> None:
        """Look at an epoch's validation score, smaller is better, and begin if it is time."""
        old = self.history[: -self.patience] if self.patience else self.history
        if self.when == "stalled" and not self.mean and old and score > min(old):
            self.begin()
        self.history.append(score)

    @contextmanager
    def placed(self) -> Iterator[None]:
        """The mean stands in the model inside, where there is one."""
        if not self.count:
            yield
            return
        kept = [p.data for p in self.parameters]
        for p, mean in zip(self.parameters, self.mean, strict=True):
            p.data = mean.clone()
        try:
            yield
        finally:
            for p, value in zip(self.parameters, kept, strict=True):
                p.data = value

    def state_dict(self) -> dict[str, Any]:
        """What exact resumption needs."""
        return {"count": self.count, "mean": list(self.mean), "history": list(self.history), "ends": self.ends}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self.count, self.mean, self.history = state["count"], list(state["mean"]), list(state["history"])
        self.ends = [list(weights) for weights in state["ends"]]
