"""`a + b` where the two objectives have different supervised losses."""

import pytest
import torch
from torch import nn

import sparring as sp


def other_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return sp.cross_entropy(outputs, targets) * 2


def test_the_loss_of_the_side_that_needs_labels_counts() -> None:
    model = nn.Linear(4, 3)
    label_free = sp.recipes.vat(model, sp.cross_entropy)
    supervised = sp.recipes.adversarial_training(model, other_loss)
    assert (label_free + supervised).loss is other_loss
    assert (supervised + label_free).loss is other_loss
    with pytest.raises(ValueError, match="two different ones"):
        supervised + sp.recipes.adversarial_training(model, sp.cross_entropy)
    with pytest.raises(ValueError, match="two different ones"):
        sp.Objective(model, sp.cross_entropy) + supervised
