"""What a measure of probabilities may be given."""

from torch import Tensor


def check_probabilities(probabilities: Tensor, dim: int = -1) -> None:
    """Refuse logits, and the yes-or-no probabilities of several labels; NaN passes, for the measure to show.

    >>> import torch
    >>> check_probabilities(torch.tensor([[0.25, 0.75]]))
    >>> check_probabilities(torch.tensor([[0.7, 0.9]]))
    Traceback (most recent call last):
    ...
    ValueError: probabilities sum up to 1.6, not to 1; pass logits.softmax(-1)

    Args:
        probabilities: of any shape, rounded to two digits or more.
        dim: the classes.
    """
    if bool((probabilities < 0).any()) or bool((probabilities > 1 + 1e-2).any()):
        raise ValueError("probabilities lie outside 0 and 1; pass logits.softmax(-1)")
    sums = probabilities.double().sum(dim).flatten()
    off = (sums - 1).abs() > 1e-2  # half precision, and tables of rounded numbers, stray this far
    if bool(off.any()):
        raise ValueError(f"probabilities sum up to {float(sums[off][0]):.4g}, not to 1; pass logits.softmax(-1)")
