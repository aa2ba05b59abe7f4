"""FreeLB and FreeAT with an Adam follower: its moments are carried, against an ascent written out by hand."""

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import sparring as sp

RADIUS, SIZE, BETAS = 0.5, 0.07, (0.9, 0.98)


def build() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()


class Follower:
    """Adam ascent in an L-infinity ball, from the formulas of Kingma and Ba."""

    def __init__(self, shape: torch.Size) -> None:
        self.delta = torch.zeros(shape, dtype=torch.float64)
        self.m, self.v, self.t = torch.zeros_like(self.delta), torch.zeros_like(self.delta), 0

    def climb(self, gradient: Tensor) -> None:
        self.t += 1
        self.m = BETAS[0] * self.m + (1 - BETAS[0]) * gradient
        self.v = BETAS[1] * self.v + (1 - BETAS[1]) * gradient**2
        step = (self.m / (1 - BETAS[0] ** self.t)) / ((self.v / (1 - BETAS[1] ** self.t)).sqrt() + 1e-8)
        self.delta = (self.delta + SIZE * step).clamp(-RADIUS, RADIUS)


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(3)
    return [(torch.randn(5, 4, generator=generator, dtype=torch.float64), torch.arange(5) % 3) for _ in range(count)]


def test_free_lb_follows_adam() -> None:
    model = build()
    objective = sp.recipes.free_lb(
        model, sp.cross_entropy, ball=sp.Linf(RADIUS), steps=4, step_size=SIZE, start=0.0, update="adam"
    )
    ((x, y),) = batches(1)
    follower, expected = Follower(x.shape), []
    for _ in range(4):
        delta = follower.delta.clone().requires_grad_()
        losses = F.cross_entropy(model(x + delta), y, reduction="none")
        expected.append(losses.mean().detach() / 4)
        follower.climb(torch.autograd.grad(losses.mean() / 4, delta)[0])
    found = []
    for loss in objective.steps(x, y):
        found.append(loss.detach())
        loss.backward()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-8)


def test_free_at_carries_its_moments_over_batches_and_checkpoints() -> None:
    model = build()
    twin = copy.deepcopy(model)
    make = lambda m: sp.recipes.free_at(
        m, sp.cross_entropy, ball=sp.Linf(RADIUS), steps=2, step_size=SIZE, update="adam"
    )
    objective = make(model)
    optimiser, other = torch.optim.SGD(model.parameters(), 0.1), torch.optim.SGD(twin.parameters(), 0.1)
    follower: Follower | None = None
    for number, (x, y) in enumerate(batches(3)):
        follower = follower or Follower(x.shape)
        if number == 2:  # a run that is resumed goes on with the same moments
            saved = objective.state_dict()
            objective = make(model)
            objective.load_state_dict(saved)
        for loss in objective.steps(x, y):
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            delta = follower.delta.clone().requires_grad_()
            expected = F.cross_entropy(twin(x + delta), y)
            torch.testing.assert_close(loss.detach(), expected.detach(), rtol=1e-5, atol=1e-7)
            other.zero_grad()
            expected.backward()
            other.step()
            assert delta.grad is not None
            follower.climb(delta.grad)
    assert follower is not None
    assert follower.delta.abs().max() > 3 * SIZE, "the follower must have gone further than a single batch takes it"


@pytest.mark.parametrize("recipe", [sp.recipes.free_lb, sp.recipes.free_at])
def test_an_objective_in_the_middle_of_a_step_can_be_copied(recipe) -> None:
    objective = recipe(build(), sp.cross_entropy)
    ((x, y),) = batches(1)
    losses = objective.steps(x, y)
    next(losses).backward()
    assert len(list(copy.deepcopy(objective).steps(x, y))) == 3
    pickle.dumps(objective.terms[0].by)


@pytest.mark.parametrize("update", ["raw", "adam"])
def test_what_the_loop_makes_of_a_loss_does_not_move_the_follower(update: str) -> None:
    """A scaled loss, an accumulated one: the follower climbs the sum of what its examples are charged."""
    ((x, y),) = batches(1)
    make = lambda: sp.recipes.free_lb(
        build(), sp.cross_entropy, ball=sp.L2(RADIUS), steps=3, step_size=SIZE, start=0.0, update=update
    )
    whole, found = make()(x, y), 0.0
    for loss in make().steps(x, y):
        found = found + loss.detach()
        (1e-3 * loss).backward()
    torch.testing.assert_close(found, whole.detach(), rtol=1e-9, atol=0)
    carried: list[Tensor] = []
    for factor in (1.0, 1e-3):
        objective = sp.recipes.free_at(
            build(), sp.cross_entropy, ball=sp.L2(RADIUS), steps=3, step_size=SIZE, update=update
        )
        for loss in objective.steps(x, y):
            (factor * loss).backward()
        carried.append(objective.state_dict()["stateful.0.carried.deltas.0"])
    torch.testing.assert_close(*carried, rtol=1e-9, atol=0)
    assert carried[0].norm() > 0.01


class Placed(nn.Module):
    """Words and places; all examples share the places."""

    def __init__(self) -> None:
        super().__init__()
        self.places, self.head = nn.Embedding(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.head(x + self.places(torch.arange(3)))).mean(1)


def test_the_follower_of_something_shared_does_not_move_with_the_loss_either() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(5, 3, 4, dtype=torch.float64), torch.arange(5) % 2
    ascent = {"ball": sp.L2(1.0), "steps": 3, "step_size": 0.3, "start": 0.0, "update": "raw"}
    objective = sp.recipes.free_lb(Placed().double(), sp.cross_entropy, at="places", **ascent)
    whole, found = objective(x, y).detach(), 0.0
    for loss in objective.steps(x, y):
        found = found + loss.detach()
        (1e-3 * loss).backward()
    torch.testing.assert_close(found, whole, rtol=1e-9, atol=0)


@pytest.mark.parametrize("recipe", [sp.recipes.free_lb, sp.recipes.free_at])
def test_passes_are_counted_alike_however_the_losses_are_asked_for(recipe) -> None:
    (inputs, targets), spent = batches(1)[0], []
    for apart in (False, True):
        objective = recipe(build(), sp.cross_entropy, at="0", ball=sp.L2(0.5), steps=3)
        runs: list[None] = []
        objective.model[2].register_forward_hook(lambda *_, runs=runs: runs.append(None))
        if apart:
            for loss in objective.steps(inputs, targets):
                loss.backward()
        else:
            objective(inputs, targets).backward()
        counted = objective.diagnostics
        spent.append((len(runs), counted["forward_passes"], counted["backward_passes"]))
    if recipe is sp.recipes.free_lb:
        assert spent[0][2] == spent[1][2] == 3
        assert all(ran == forward for ran, forward, _ in spent)
    else:  # each replay is a step of its own
        assert spent[1] == (3, 1, 1)


def test_free_at_rolled_back_goes_on_as_one_that_was_built_anew() -> None:
    """The gradient of the batch before the roll-back belongs to another perturbation."""
    make = lambda model: sp.recipes.free_at(model, sp.cross_entropy, ball=sp.Linf(RADIUS), steps=2, step_size=SIZE)
    data = list(batches(3))

    def train(objective: sp.Objective, x: Tensor, y: Tensor) -> list[float]:
        optimiser, losses = torch.optim.SGD(objective.model.parameters(), 0.1), []
        for loss in objective.steps(x, y):
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(float(loss.detach()))
        return losses

    live = make(build())
    train(live, *data[0])
    saved = copy.deepcopy(live.state_dict())
    train(live, *data[1])
    live.load_state_dict(saved)
    fresh = make(copy.deepcopy(live.model))
    fresh.load_state_dict(saved)
    assert train(live, *data[2]) == train(fresh, *data[2])
