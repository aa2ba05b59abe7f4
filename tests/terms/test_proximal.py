"""SMART's averaged weights follow every optimiser, and say so when they were left behind."""

import copy

import pytest
import torch
from torch import nn

import sparring as sp
from sparring.terms import Proximal


def build() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


OPTIMISERS = {
    "fused": lambda p: torch.optim.AdamW(p, lr=0.05, fused=True),
    "foreach": lambda p: torch.optim.AdamW(p, lr=0.05, foreach=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.5),
    "fused sgd": lambda p: torch.optim.SGD(p, lr=0.5, fused=True),
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_the_average_follows(name: str) -> None:
    model = build()
    x, y = torch.randn(6, 4), torch.arange(6) % 3
    objective = sp.recipes.smart(model, sp.cross_entropy, ball=sp.L2(0.5), step_size=None, decay=0.75)
    optimiser = OPTIMISERS[name](model.parameters())
    expected = [p.detach().clone() for p in model.parameters()]
    for _ in range(3):
        for _ in range(2):  # accumulation: two backward passes, one update
            objective(x, y).backward()
        optimiser.step()
        optimiser.zero_grad()
        expected = [0.75 * e + 0.25 * p.detach() for e, p in zip(expected, model.parameters())]
    (term,) = [t for t in objective.terms if isinstance(t, Proximal)]
    term.follow()
    torch.testing.assert_close(list(term.averages.values()), expected)
    assert int(term.updates) == 3


def test_an_optimiser_of_other_parameters_does_not_count() -> None:
    model, other = build(), nn.Linear(2, 2)
    term = Proximal(model)
    term.follow()
    other(torch.ones(1, 2)).sum().backward()
    torch.optim.AdamW(other.parameters(), fused=True).step()
    term.follow()
    assert int(term.updates) == 0


def test_a_checkpoint_of_the_model_alone_warns_and_starts_anew() -> None:
    model = build()
    objective = sp.recipes.smart(model, sp.cross_entropy, ball=sp.L2(0.5), step_size=None)
    x, y = torch.randn(6, 4), torch.arange(6) % 3
    objective(x, y)
    with torch.no_grad():
        loaded = {name: value + 1 for name, value in copy.deepcopy(model.state_dict()).items()}
    model.load_state_dict(loaded)
    with pytest.warns(UserWarning, match=r"save and load objective.state_dict"):
        objective(x, y)
    (term,) = [t for t in objective.terms if isinstance(t, Proximal)]
    torch.testing.assert_close(list(term.averages.values()), [p.detach() for p in model.parameters()])


def test_a_checkpoint_of_the_objective_keeps_the_average() -> None:
    objectives = [
        sp.recipes.smart(build(), sp.cross_entropy, ball=sp.L2(0.5), step_size=None, decay=0.5) for _ in range(2)
    ]
    x, y = torch.randn(6, 4), torch.arange(6) % 3
    optimiser = OPTIMISERS["fused"](objectives[0].model.parameters())
    for _ in range(2):
        objectives[0](x, y).backward()
        optimiser.step()
    objectives[1].load_state_dict(objectives[0].state_dict())
    averages = [next(t for t in o.terms if isinstance(t, Proximal)).averages for o in objectives]
    for name, value in averages[0].items():
        assert torch.equal(averages[1][name], value)
    assert not torch.equal(averages[0]["0.weight"], objectives[0].model[0].weight)
