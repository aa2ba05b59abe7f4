"""What moves by itself, moves once a step."""

import copy

import pytest
import torch
from torch import nn

import sparring as sp

KINDS = {"new": nn.utils.parametrizations.spectral_norm, "old": nn.utils.spectral_norm}


@pytest.mark.filterwarnings("ignore:.*deprecated.*")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("recipe", [sp.recipes.vat, sp.recipes.smart, sp.recipes.adversarial_training])
def test_spectral_norm_iterates_in_the_clean_pass_only(kind: str, recipe) -> None:
    model = nn.Sequential(KINDS[kind](nn.Linear(4, 8)), nn.Tanh(), KINDS[kind](nn.Linear(8, 3)))
    twin = copy.deepcopy(model)
    x, y = torch.randn(5, 4), torch.arange(5) % 3
    recipe(model, sp.cross_entropy, "0", ball=sp.L2(0.5))(x, y).backward()
    before = [b.clone() for b in twin.buffers()]
    twin(x)
    assert not all(map(torch.equal, before, twin.buffers())), "one plain pass must move something"
    assert all(map(torch.equal, model.buffers(), twin.buffers()))


def test_instance_norm_moves_in_the_clean_pass_only() -> None:
    model = nn.Sequential(nn.InstanceNorm1d(4, track_running_stats=True), nn.Flatten(), nn.Linear(24, 3))
    twin = copy.deepcopy(model)
    x, y = torch.randn(5, 4, 6), torch.arange(5) % 3
    sp.recipes.vat(model, sp.cross_entropy, "0")(x, y).backward()
    twin(x)
    assert all(map(torch.equal, model.buffers(), twin.buffers()))
