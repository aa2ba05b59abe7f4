"""Segmentation: confusion counts, pixel accuracy and mean intersection over union."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Confusion:
    """Counts of (true class, predicted class), addable over batches.

    >>> counts = Confusion.of(torch.tensor([0, 1, 1, 1]), torch.tensor([0, 0, 1, 9]), classes=3, void=9)
    >>> counts.matrix.tolist()
    [[1, 1, 0], [0, 1, 0], [0, 0, 0]]
    >>> counts.iou, counts.mean_iou, round(counts.accuracy, 4)
    (tensor([0.5000, 0.5000,    nan], dtype=torch.float64), 0.5, 0.6667)
    """

    matrix: Tensor

    @classmethod
    def of(cls, predicted: Tensor, targets: Tensor, classes: int, void: int | None = None) -> "Confusion":
        """Count predictions; pixels whose target is `void` are left out.

        Args:
            predicted: class indices of any shape.
            targets: class indices, same shape.
            classes: how many classes there are, void excluded.
            void: label of pixels to skip.
        """
        if predicted.shape != targets.shape:
            raise ValueError(f"predicted {tuple(predicted.shape)} and targets {tuple(targets.shape)} differ in shape")
        if predicted.is_floating_point() or targets.is_floating_point():
            raise ValueError("predicted and targets must be class numbers; of probabilities take .argmax(1), or > 0.5")
        counted = torch.ones_like(targets, dtype=torch.bool) if void is None else targets != void
        true, guess = targets[counted].long(), predicted[counted].long()  # bytes would overflow below
        for name, values in (("targets", true), ("predicted", guess)):
            if values.numel() and (int(values.min()) < 0 or int(values.max()) >= classes):
                raise ValueError(
                    f"{name} holds labels {int(values.min())}..{int(values.max())} outside 0..{classes - 1}; "
                    "give void= or more classes"
                )
        return cls(torch.bincount(true * classes + guess, minlength=classes**2).reshape(classes, classes))

    def __add__(self, other: "Confusion") -> "Confusion":
        return Confusion(self.matrix + other.matrix)

    @property
    def accuracy(self) -> float:
        """Share of counted pixels that are right; NaN without any."""
        return float(self.matrix.diagonal().sum() / self.matrix.sum().double())

    @property
    def iou(self) -> Tensor:
        """`(classes,)` intersection over union; NaN for a class neither present nor predicted."""
        hit = self.matrix.diagonal().double()
        return hit / (self.matrix.sum(0) + self.matrix.sum(1) - hit)

    @property
    def mean_iou(self) -> float:
        """Mean over the classes that are present or predicted."""
        return float(self.iou.nanmean())


def mean_iou(predicted: Tensor, targets: Tensor, classes: int, void: int | None = None) -> float:
    """Mean intersection over union of one set of predictions.

    >>> mean_iou(torch.tensor([[0, 1]]), torch.tensor([[0, 0]]), classes=2)
    0.25

    Args: as in `Confusion.of`.
    """
    return Confusion.of(predicted, targets, classes, void).mean_iou
