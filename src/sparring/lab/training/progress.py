"""Where a run stands, and what its batches said, read from the device without making it wait at every step."""

from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..errors import Diverged

READ_EVERY = 20  # batches between two looks at an accelerator: its queue runs empty while the host reads from it


@dataclass
class Progress:
    """Where a run stands; all of it is in the checkpoint."""

    epoch: int = 0  # epochs completed
    batch: int = 0  # batches of the present epoch completed
    step: int = 0  # batches completed in all
    losses: list[float] = field(default_factory=list)  # of the present epoch, one per batch
    notes: dict[str, list[float]] = field(default_factory=dict)  # diagnostics of the present epoch: [sum, count]
    seconds: float = 0.0  # CPU time of the present epoch's batches
    passes: float = 0  # forward passes through the model in the present epoch, and one backward pass for each loss
    more: list[float] = field(default_factory=lambda: [0.0, 0])  # backward passes beyond those: [sum, batches asked]
    best: float | None = None
    best_epoch: int = 0

    def __post_init__(self) -> None:
        self.unread: list[tuple[int, list[Tensor]]] = []  # numbers of batches whose losses are still on the device

    def state(self) -> dict[str, Any]:
        """What exact resumption needs."""
        self.read()
        return asdict(self)

    def reads_notes(self, device: torch.device) -> bool:
        """Whether the diagnostics of the present batch are asked for: always on a CPU, now and then where that makes it wait."""
        return device.type == "cpu" or self.batch % READ_EVERY == 0

    def add(self, losses: list[Tensor], notes: dict[str, float] | None) -> None:
        """Count one batch; None says that its diagnostics were not asked for."""
        self.batch, self.step = self.batch + 1, self.step + 1
        self.unread.append((self.batch, losses))
        self.passes += len(losses)
        if losses[0].device.type == "cpu" or len(self.unread) >= READ_EVERY:
            self.read()
        if notes is None:
            return
        extra = max(0, notes.get("backward_passes", 0) - len(losses))
        self.more = [self.more[0] + extra, self.more[1] + 1]
        for name, value in notes.items():
            if value == value:
                total = self.notes.setdefault(name, [0.0, 0])
                total[0], total[1] = total[0] + value, total[1] + 1

    def read(self) -> None:
        """Fetch the losses that have not been looked at, all in one copy; a loss that is no number ends the run."""
        unread, self.unread = self.unread, []
        if not unread:
            return
        values = iter(torch.stack([loss.reshape(()) for _, losses in unread for loss in losses]).tolist())
        for batch, losses in unread:
            found = [next(values) for _ in losses]
            for value in found:
                self.refuse(value, batch)
            self.losses.append(sum(found) / len(found))

    def refuse(self, loss: float, batch: int) -> None:
        """An error where a loss is no number."""
        if not abs(loss) < float("inf"):
            raise Diverged(
                f"the loss is {loss} at epoch {self.epoch + 1}, batch {batch}; "
                "a smaller --set lr=... or radius, or --set clip=1, may help"
            )

    def close_epoch(self) -> dict[str, Any]:
        """Finish the epoch; returns what happened in it."""
        self.read()
        count = max(len(self.losses), 1)
        record = {
            "epoch": self.epoch + 1,
            "step": self.step,
            "loss": sum(self.losses) / count,
            "losses": self.losses,
            "diagnostics": {name: total / n for name, (total, n) in self.notes.items()},
            "seconds_per_step": self.seconds / count,
            "passes_per_step": (self.passes + self.more[0] * count / max(self.more[1], 1)) / count,
        }
        self.epoch, self.batch, self.losses, self.notes = self.epoch + 1, 0, [], {}
        self.seconds, self.passes, self.more = 0.0, 0, [0.0, 0]
        return record
