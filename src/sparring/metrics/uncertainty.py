"""Is a model uncertain where it is wrong? Predictive entropy and PAvgPU."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from .probabilities import check_probabilities


def predictive_entropy(probabilities: Tensor, dim: int = -1) -> Tensor:
    """Entropy in nats of (mean) predictive probabilities; certain predictions give exactly 0.

    >>> predictive_entropy(torch.tensor([[0.5, 0.5], [1.0, 0.0]]))
    tensor([0.6931, 0.0000])

    Args:
        probabilities: non-negative, summing to one along `dim`.
        dim: the class axis; 1 for `(B, C, H, W)`.
    """
    check_probabilities(probabilities, dim)
    return torch.special.entr(probabilities).sum(dim)


@dataclass(frozen=True)
class PAvgPU:
    """Counts of (in)accurate and (un)certain predictions, eq. 9, each a tensor over thresholds (or a scalar).

    Attributes:
        threshold: entropies above it count as uncertain.
        accurate_certain, accurate_uncertain, inaccurate_certain, inaccurate_uncertain: counts.
    """

    threshold: Tensor
    accurate_certain: Tensor
    accurate_uncertain: Tensor
    inaccurate_certain: Tensor
    inaccurate_uncertain: Tensor

    @property
    def total(self) -> Tensor:
        return self.accurate_certain + self.accurate_uncertain + self.inaccurate_certain + self.inaccurate_uncertain

    @property
    def score(self) -> Tensor:
        """PAvgPU itself: share of predictions that are right and certain or wrong and uncertain; NaN without any."""
        return (self.accurate_certain + self.inaccurate_uncertain) / self.total.double()

    @property
    def accurate_given_certain(self) -> Tensor:
        """P(accurate | certain); NaN where nothing is certain."""
        return self.accurate_certain / (self.accurate_certain + self.inaccurate_certain).double()

    @property
    def uncertain_given_inaccurate(self) -> Tensor:
        """P(uncertain | inaccurate); NaN where nothing is inaccurate."""
        return self.inaccurate_uncertain / (self.inaccurate_uncertain + self.inaccurate_certain).double()

    def __add__(self, other: "PAvgPU") -> "PAvgPU":
        """Counts of two sets of predictions at the same thresholds (batches of one evaluation)."""
        if not torch.equal(self.threshold, other.threshold):
            raise ValueError("PAvgPU counts at different thresholds cannot be added")
        mine, theirs = vars(self), vars(other)
        return PAvgPU(self.threshold, *(mine[key] + theirs[key] for key in mine if key != "threshold"))


def pavgpu(right: Tensor, entropy: Tensor, threshold: float | Tensor | None = None) -> PAvgPU:
    """PAvgPU of predictions, given which are right and how uncertain they are.

    >>> right = torch.tensor([True, True, False, False])
    >>> float(pavgpu(right, torch.tensor([0.1, 0.2, 0.3, 0.9])).score)     # the mean entropy divides: 0.375
    0.75

    Args:
        right: booleans of any shape.
        entropy: uncertainty, same shape.
        threshold: a number or a tensor of thresholds; above it is uncertain. None takes the mean entropy.

    Paper: eq. 9 (Mukhoti and Gal, 2018).
    """
    if right.shape != entropy.shape:
        raise ValueError(f"right {tuple(right.shape)} and entropy {tuple(entropy.shape)} must have the same shape")
    right, entropy = right.flatten().bool(), entropy.detach().flatten().double()
    if bool(entropy.isnan().any()):
        raise ValueError("entropy holds NaN, which is neither certain nor uncertain; look at the model's probabilities")
    cut = (
        entropy.mean() if threshold is None else torch.as_tensor(threshold, dtype=torch.float64, device=entropy.device)
    )
    shape = cut.shape
    accurate, wrong = (e.sort().values for e in (entropy[right], entropy[~right]))
    flat = cut.flatten().contiguous()
    counts = []
    for ordered in (accurate, wrong):
        certain = torch.searchsorted(ordered, flat, right=True)  # entropies <= threshold
        counts += [certain.reshape(shape), (ordered.numel() - certain).reshape(shape)]
    return PAvgPU(cut, *counts)


def threshold_grid(entropy: Tensor, points: int | Tensor = 21) -> Tensor:
    """Thresholds `min + t (max - min)` between the extreme entropies of a validation set.

    >>> threshold_grid(torch.tensor([1.0, 3.0]), 3)
    tensor([1., 2., 3.], dtype=torch.float64)

    Args:
        entropy: the validation set's entropies.
        points: how many t from 0 to 1, or the t themselves.
    """
    if entropy.numel() == 0:
        raise ValueError("entropy is empty; a grid needs the extremes of at least one prediction")
    t = torch.linspace(0, 1, points) if isinstance(points, int) else points
    low, high = entropy.detach().double().aminmax()
    return low + t.to(low) * (high - low)


def patch_pavgpu(
    probabilities: Tensor,
    targets: Tensor,
    threshold: float | Tensor | None = None,
    *,
    window: int = 2,
    stride: int | None = None,
    void: int | None = None,
) -> PAvgPU:
    """PAvgPU of a segmentation over `window x window` patches: mean entropy, and accurate if more than half is right.

    >>> probabilities = torch.tensor([0.9, 0.1]).reshape(1, 2, 1, 1).expand(1, 2, 2, 2)
    >>> int(patch_pavgpu(probabilities, torch.zeros(1, 2, 2, dtype=torch.long), 0.5).accurate_certain)
    1

    Args:
        probabilities: `(B, classes, H, W)` mean predictive probabilities.
        targets: `(B, H, W)` class indices.
        threshold: as in `pavgpu`; None takes the mean patch entropy.
        window: side of a patch.
        stride: step between patches; None tiles without overlap, 1 is a sliding window.
        void: label that marks pixels to skip; a patch counts if at least one of its pixels has a label.
    """
    if probabilities.dim() != 4 or targets.shape != probabilities[:, 0].shape:
        raise ValueError(
            f"probabilities {tuple(probabilities.shape)} must be (B, C, H, W), targets {tuple(targets.shape)} (B, H, W)"
        )
    if window < 1 or window > min(targets.shape[1:]):
        raise ValueError(f"window={window} must lie between 1 and the smaller side of {tuple(targets.shape[1:])}")
    if stride is not None and stride < 1:
        raise ValueError(f"stride={stride} must be at least 1; None tiles without overlap")
    entropy, right, counted = patch_statistics(probabilities, targets, window, stride or window, void)
    return pavgpu((right > 0.5)[counted], entropy[counted], threshold)


def patch_statistics(
    probabilities: Tensor, targets: Tensor, window: int, stride: int, void: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean entropy, accuracy and whether any pixel is labelled, for each patch: three `(B, h, w)` tensors."""
    labelled = torch.ones_like(targets, dtype=torch.bool) if void is None else targets != void
    entropy = predictive_entropy(probabilities.double(), 1)
    right = probabilities.argmax(1) == targets

    def total(values: Tensor) -> Tensor:
        masked = torch.where(labelled, values.double(), 0.0)
        return F.avg_pool2d(masked[:, None], window, stride, divisor_override=1)[:, 0]

    count = total(labelled).round()
    many = count.clamp(min=1)
    return total(entropy) / many, total(right) / many, count > 0
