"""What moves by itself, moves once a step."""

import copy

import pytest
import torch
from torch import nn

import sparring as sp
from sparring.passes.layout import Layout

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


def test_hooks_see_every_call_after_modules_changed_places() -> None:
    """What comes before the site is learned by position: the same children in another order are another model."""
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)), nn.Linear(64, 3))
    objective = sp.recipes.vat(model, sp.cross_entropy, "2")
    x, y = torch.randn(5, 64), torch.arange(5) % 3
    for _ in range(2):
        objective(x, y)
    children = {name: model._modules[name] for name in "30214"}
    model._modules.clear()
    model._modules.update(children)
    seen: list[nn.Module] = []
    children["3"].register_forward_hook(lambda module, given, output: seen.append(module))
    passes = 0.0
    for _ in range(3):
        objective(x, y)
        passes += objective.diagnostics["forward_passes"]
    assert len(seen) == passes


def test_a_layout_is_kept_until_the_modules_change() -> None:
    inner = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    model = nn.Sequential(inner, nn.Linear(4, 3))
    sites = (sp.Output("0.0"),)
    first = Layout.of(model, sites)
    assert Layout.of(model, sites, first) is first
    inner[1] = nn.ReLU()
    swapped = Layout.of(model, sites, first)
    assert swapped is not first
    assert inner[1] in swapped.modules
    inner[1].extra = nn.Identity()  # a leaf that has a child now
    assert Layout.of(model, sites, swapped) is not swapped
    assert Layout.of(copy.deepcopy(model), sites, first) is not first, "another model of the same shape"
    assert Layout.of(model, (sp.Output("1"),), Layout.of(model, sites)).matches.keys() == {sp.Output("1")}


@pytest.mark.filterwarnings("ignore:.*deprecated.*")
def test_a_scripted_part_is_looked_at_once_too() -> None:
    model = nn.Sequential(
        torch.jit.trace(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), torch.zeros(1, 4)), nn.Linear(4, 3)
    )
    first = Layout.of(model, ())
    assert Layout.of(model, (), first) is first


def test_a_module_swapped_between_steps_is_seen_by_the_next() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    objective = sp.recipes.vat(model, sp.cross_entropy, "0", ball=sp.L2(0.5))
    x, y = torch.randn(5, 4), torch.arange(5) % 3
    for _ in range(3):
        objective(x, y).backward()
    model[0] = nn.Linear(4, 8)
    twin = sp.recipes.vat(copy.deepcopy(model), sp.cross_entropy, "0", ball=sp.L2(0.5))
    torch.manual_seed(0)
    mine = objective(x, y)
    torch.manual_seed(0)
    assert torch.equal(mine, twin(x, y))
