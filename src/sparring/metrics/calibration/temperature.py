"""Temperature scaling: one number, fitted on validation, that makes a classifier as sure as it is right."""

from torch import Tensor

from .inputs import class_numbers


def fit_temperature(logits: Tensor, targets: Tensor, lowest: float = 0.01, highest: float = 100.0) -> float:
    """The temperature T at which `logits / T` has the least cross-entropy (Guo et al. 2017, section 4.2).

    Fit it on validation data, apply it to test: answers stay the same, confidences change. In 1 / T the cross-entropy is
    convex, so bisection of its slope finds the only minimum.

    >>> import torch
    >>> logits = torch.tensor([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [4.0, 0.0]])
    >>> temperature = fit_temperature(logits, torch.tensor([0, 0, 0, 1]))
    >>> (logits / temperature).softmax(-1)[0, 0]
    tensor(0.7500)

    Args:
        logits: `(N, classes)` of data that the model was not trained on.
        targets: `(N,)` class indices.
        lowest: the answer where every prediction is right, which asks for ever lower temperatures.
        highest: the answer where the logits say nothing.
    """
    if logits.dim() != 2 or targets.shape != logits.shape[:1]:
        raise ValueError(
            f"fit_temperature: logits {tuple(logits.shape)} and targets {tuple(targets.shape)} must be (N, classes) and (N,)"
        )
    if not 0 < lowest < highest:
        raise ValueError(f"fit_temperature(lowest={lowest}, highest={highest}): 0 < lowest < highest")
    z = logits.detach().double()
    if not bool(z.isfinite().all()):
        raise ValueError("fit_temperature: the logits hold values that are not finite")
    wanted = z.gather(1, class_numbers(targets, z.shape[1])[:, None]).mean()

    def slope(sharpness: float) -> float:  # of the cross-entropy over 1 / T
        return float(((z * sharpness).softmax(1) * z).sum(1).mean() - wanted)

    low, high = 1 / highest, 1 / lowest
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (low, middle) if slope(middle) > 0 else (middle, high)
    return 2 / (low + high)
