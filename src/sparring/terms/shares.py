"""Watch the predictions on unlabelled data: a class that nobody predicts any more is the first sign of a collapse."""

import warnings

import torch
from torch import Tensor

PATIENCE = 50  # batches before anything is said
MEMORY = 0.98
RARE = 0.02  # of the share that a class would have if all were equally frequent


class ClassShares:
    """Slow averages of how often each class is predicted on unlabelled data, kept on the device until somebody asks.

    >>> shares = ClassShares()
    >>> shares.add(torch.tensor([[2.0, 0.0], [3.0, 0.0]]))
    >>> shares.diagnostics()
    {'unlabelled/missing_classes': 0.0}
    """

    def __init__(self) -> None:
        self.average: Tensor | None = None
        self.batches = 0
        self.warned = False

    @torch.no_grad()
    def add(self, outputs: Tensor) -> None:
        """Count the predictions of one batch; outputs that are not distributions over classes are left alone."""
        if outputs.dim() < 2 or outputs.shape[-1] < 2:
            return
        classes = outputs.shape[-1]
        share = torch.zeros(classes, device=outputs.device)
        chosen = outputs.detach().reshape(-1, classes).argmax(-1)
        share.scatter_add_(0, chosen, torch.full(chosen.shape, 1.0 / max(1, len(chosen)), device=outputs.device))
        if self.average is None or len(self.average) != classes or self.average.device != share.device:
            self.average, self.batches = torch.full_like(share, 1.0 / classes), 0
        self.average = MEMORY * self.average + (1 - MEMORY) * share
        self.batches += 1

    def diagnostics(self) -> dict[str, float]:
        """How many classes have all but disappeared; warns once."""
        if self.average is None:
            return {}
        missing = 0
        if self.batches >= PATIENCE:
            missing = int((self.average < RARE / len(self.average) + MEMORY**self.batches / len(self.average)).sum())
        if missing and not self.warned and len(self.average) <= 1000:
            self.warned = True
            warnings.warn(
                f"{missing} of {len(self.average)} classes have disappeared from the predictions on unlabelled data: the model may be "
                "collapsing; use a smaller weight, or detach_clean=True",
                stacklevel=3,
            )
        return {"unlabelled/missing_classes": float(missing)}
