"""Means over the charges of a step: every example counts the same, or every token; labelled and unlabelled ones apart."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from .charge import takes
from .masks import Masks
from .ranks import mean_over_ranks

Reduction = Literal["examples", "tokens"]
Items = Tensor | float | Literal["ranks"] | None


@dataclass
class Means:
    """What counts in a mean, and how much.

    Attributes:
        masks: which positions count.
        targets: as given to the objective, or None (unlabelled).
        supervised: the supervised loss, which may ignore a label.
        labelled: how many of the examples, the first ones, have targets; None for all of them (or none).
        reduction: "examples" (every example counts the same) or "tokens" (every position does).
        items: "ranks" divides sums by the mean number of examples or tokens over all processes, anything else by that of this batch.
        counted: how many examples, or tokens, the first mean was over: the labelled ones where there are any.
    """

    masks: Masks
    targets: Any
    supervised: Callable[..., Tensor]
    labelled: int | None
    reduction: Reduction
    items: Items
    counted: Tensor | int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.items, str) and self.items != "ranks":
            raise ValueError(f'items={self.items!r}: a number, or "ranks" for the mean over all processes')

    def of(self, values: Tensor, outputs: Tensor | None) -> Tensor:
        """The mean of a per-example charge: over examples with anything to count, or over their tokens.

        An example whose label the loss ignores is left out. Labelled and unlabelled examples are averaged apart and added up.

        Args:
            values: the charges, (B,).
            outputs: of the pass they are about: the mask of their positions counts.
        """
        if values.dim() == 0:
            return values
        if self.plain:
            return self._mean(values, None)
        mask = None if outputs is None or len(outputs) < len(values) else self.masks.at_outputs(outputs[: len(values)])
        counts = self._with_labels(None if mask is None else mask.flatten(1).sum(1), len(values))
        if self.labelled is None or len(values) <= self.labelled:
            return self._mean(values, counts)
        n = self.labelled
        parts = [
            (values[:n], None if counts is None else counts[:n]),
            (values[n:], None if counts is None else counts[n:]),
        ]
        return self._mean(*parts[0]) + self._mean(*parts[1])

    @property
    def plain(self) -> bool:
        """Whether a mean over the step is the plain mean over its examples."""
        return self.masks.all_count and self.labelled is None and self._labels is None

    @cached_property
    def _labels(self) -> Tensor | None:
        """0 for examples whose one label the loss ignores, 1 for the others; None if there are none. Accelerators are not asked."""
        targets = self.targets
        if not isinstance(targets, Tensor) or targets.dim() != 1 or targets.is_floating_point():
            return None
        if not hasattr(self.supervised, "ignore_index") and "ignore_index" not in takes(self.supervised):
            return None
        there = targets != self.masks.ignore
        return None if there.is_cpu and bool(there.all()) else there.long()

    def _with_labels(self, counts: Tensor | None, examples: int) -> Tensor | None:
        labels = self._labels
        if labels is None:
            return counts
        if len(labels) < examples:  # examples without labels follow the labelled ones
            labels = torch.cat([labels, labels.new_ones(examples - len(labels))])
        return labels if counts is None else counts * labels

    def _mean(self, values: Tensor, counts: Tensor | None) -> Tensor:
        if counts is None:
            self._count(values.shape[0])
            return (
                values.sum() / self._divisor(values.shape[0], values) if isinstance(self.items, str) else values.mean()
            )
        weights = (counts if self.reduction == "tokens" else counts > 0).to(values.dtype)
        total = torch.where(counts > 0, values, 0.0)
        total = (total * weights).sum() if self.reduction == "tokens" else total.sum()
        count = weights.sum()
        self._count(count)
        return total / self._divisor(count, values)

    def _count(self, count: Tensor | int) -> None:
        if self.counted is None:
            self.counted = count

    def _divisor(self, count: Tensor | int, like: Tensor) -> Tensor | float:
        if isinstance(self.items, str):
            return mean_over_ranks(torch.as_tensor(count, dtype=like.dtype, device=like.device)).clamp_min(1e-9)
        return count.clamp_min(1) if isinstance(count, Tensor) else count
