"""What an update is a mean over: the examples, or tokens, of all batches and processes that make it.

A loss is the mean of its batch. Batches that are filled by tokens hold different numbers of both, and a mean of their means would
give those of a short batch more weight. Times its count each loss is a sum; sums add up over batches and processes, and divided by
all that was counted they are the mean over everything. Unlabelled examples have the weight of their batch.

>>> items = Items(Accelerator(cpu=True), several=True)
>>> items.add(3), items.add(1)
(3, 1)
>>> items.taken(), items.total
(4.0, 0.0)
"""

from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

Count = Tensor | int


class Items:
    """How much was counted since the last update.

    Args:
        accelerator: this process's place among the others.
        several: whether an update is ever made of more than one loss's examples; if not, losses stay the means they are.
    """

    def __init__(self, accelerator: Accelerator, several: bool) -> None:
        self.accelerator, self.several = accelerator, several
        self.total: Any = 0.0

    def add(self, count: Count) -> Count:
        """Count a batch; returns the factor that makes sums of its losses."""
        if not self.several:
            return 1
        self.total = self.total + count
        return count

    def taken(self) -> Any:
        """What the gradients, averaged over the processes, are to be divided by; None: nothing. Every process must call it."""
        if not self.several:
            return None
        total, self.total = self.total, 0.0
        if self.accelerator.num_processes > 1:
            total = torch.as_tensor(total, dtype=torch.float32, device=self.accelerator.device)
            total = self.accelerator.reduce(total.clone(), reduction="mean")
        # Labels may be ignored in every batch: the gradients are zero then, and stay it.
        return total.clamp_min(1e-9) if isinstance(total, Tensor) else total
