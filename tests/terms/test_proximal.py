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


X, Y = torch.linspace(-1, 1, 24).view(6, 4), torch.arange(6) % 3


def smart(model: nn.Module) -> tuple[sp.Objective, Proximal]:
    objective = sp.recipes.smart(model, sp.cross_entropy, ball=sp.L2(0.5), step_size=None, decay=0.5)
    return objective, next(t for t in objective.terms if isinstance(t, Proximal))


def update(objective: sp.Objective) -> None:
    objective(X, Y).backward()
    torch.optim.SGD(objective.model.parameters(), lr=0.5).step()


def moved(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value + 1 for name, value in model.state_dict().items()}


def weights(model: nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("through", ["model", "objective"])
def test_a_checkpoint_of_the_model_alone_warns_and_starts_anew(through: str) -> None:
    objective, term = smart(build())
    update(objective)
    objective(X, Y)
    loaded = moved(objective.model)
    if through == "model":
        objective.model.load_state_dict(loaded)
    else:  # a checkpoint of another method's objective: no averages in it
        objective.load_state_dict({f"model.{name}": value for name, value in loaded.items()}, strict=False)
    with pytest.warns(UserWarning, match=r"save and load objective.state_dict"):
        objective(X, Y)
    torch.testing.assert_close(list(term.averages.values()), weights(objective.model))


@pytest.mark.parametrize("looked", [False, True], ids=["unused", "called once"])
@pytest.mark.parametrize("part", [False, True], ids=["whole", "one layer"])
def test_weights_that_come_before_the_first_update_are_where_the_average_starts(looked: bool, part: bool) -> None:
    """The objective is built, then pretrained weights are loaded: nothing was averaged, so nothing is lost and nobody is warned."""
    objective, term = smart(build())
    if looked and not part:
        objective(X, Y)
    target = objective.model[2] if part else objective.model
    target.load_state_dict(moved(target))
    start = weights(objective.model)
    update(objective)
    torch.testing.assert_close(list(term.averages.values()), start)
    term.follow()
    expected = [(s + p) / 2 for s, p in zip(start, weights(objective.model))]
    torch.testing.assert_close(list(term.averages.values()), expected)


@pytest.mark.parametrize("used", [False, True], ids=["fresh", "in use"])
@pytest.mark.parametrize("order", ["model first", "averages first"])
@pytest.mark.parametrize("updates", [0, 2])
def test_a_checkpoint_of_both_keeps_the_average_in_either_order(used: bool, order: str, updates: int) -> None:
    saved, kept = smart(build())
    for _ in range(updates):
        update(saved)
    model, average = copy.deepcopy(saved.model.state_dict()), copy.deepcopy(kept.state_dict())
    objective, term = smart(build())
    if used:
        update(objective)
        objective(X, Y)
    loads = [lambda: objective.model.load_state_dict(model), lambda: term.load_state_dict(average)]
    for load in loads if order == "model first" else reversed(loads):
        load()
    objective(X, Y)
    assert int(term.updates) == updates
    torch.testing.assert_close(list(term.averages.values()), [average[f"average{i}"] for i in range(4)])
    for one, parameters in ((kept, saved.model), (term, objective.model)):
        with torch.no_grad():
            for parameter in parameters.parameters():
                parameter.mul_(2)
        one.follow()
    torch.testing.assert_close(list(term.averages.values()), list(kept.averages.values()))


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
