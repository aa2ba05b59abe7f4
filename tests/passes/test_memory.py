"""What a model remembers from one call to the next: buffers are held, everything else is refused by name."""

import copy
import random
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import sparring as sp

RECIPES = {
    "vat": lambda model: sp.recipes.vat(model, sp.cross_entropy),
    "r_drop": lambda model: sp.recipes.r_drop(model, sp.cross_entropy),
    "salt": lambda model: sp.recipes.salt(model, sp.cross_entropy, unroll="autograd", steps=2),
    "salt by finite differences": lambda model: sp.recipes.salt(model, sp.cross_entropy, unroll="finite_difference"),
    "smart": lambda model: sp.recipes.smart(model, sp.cross_entropy, ball=sp.L2(0.5), step_size=None),
    "free_lb": lambda model: sp.recipes.free_lb(model, sp.cross_entropy, at="1"),
    "adversarial training": lambda model: sp.recipes.adversarial_training(model, sp.cross_entropy, ball=sp.L2(0.1)),
}


class Centred(nn.Module):
    """Somebody's own norm: it takes away an average that it keeps, and moves it in place or puts a new one there."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            moved = 0.9 * self.mean + 0.1 * x.detach().mean(0)
            if self.in_place:
                self.mean.copy_(moved)
            else:
                self.mean = moved
        return x - self.mean.clone()


def network(first: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(first, nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def batch(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(seed)
    return torch.randn(5, 4, dtype=torch.double), torch.randint(3, (5,))


@pytest.mark.filterwarnings("ignore:r_drop. both passes")  # there is no dropout in it
@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("name", RECIPES)
def test_buffers_move_once_a_step(name: str, in_place: bool) -> None:
    model = network(Centred(in_place))
    alone = copy.deepcopy(model)
    objective = RECIPES[name](model)
    for seed in range(3):
        x, y = batch(seed)
        for loss in objective.steps(x, y):
            loss.backward()
        alone(x)
        assert torch.equal(model[0].mean, alone[0].mean)


@pytest.mark.parametrize("in_place", [True, False])
def test_a_perturbed_pass_is_the_function_that_the_clean_pass_was(in_place: bool) -> None:
    """The same numbers come out where the average is an argument: what it was before the step."""

    class Told(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x - (0.9 * self.before + 0.1 * x.detach().mean(0))

    told = Told()
    told.before = torch.zeros(4, dtype=torch.double)
    pair = network(Centred(in_place)), network(told)
    objectives = [sp.recipes.vat(model, sp.cross_entropy) for model in pair]
    for seed in range(3):
        x, y = batch(seed)
        found = []
        for model, objective in zip(pair, objectives, strict=True):
            torch.manual_seed(9)
            model.zero_grad()
            loss = objective(x, y)
            loss.backward()
            found.append([loss.detach(), *(p.grad for p in model.parameters())])
        for a, b in zip(*found, strict=True):
            assert torch.allclose(a, b, rtol=1e-12, atol=1e-14)
        told.before = 0.9 * told.before + 0.1 * x.mean(0)


def test_a_checkpointed_region_sees_what_its_pass_saw() -> None:
    class Checkpointed(nn.Module):
        def __init__(self, again: bool) -> None:
            super().__init__()
            self.inner, self.again = network(Centred(in_place=True)), again

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.inner, x, use_reentrant=False) if self.again else self.inner(x)

    found = []
    for again in (True, False):
        model = Checkpointed(again)
        objective = sp.recipes.vat(model, sp.cross_entropy)
        for seed in range(3):
            x, y = batch(seed)
            torch.manual_seed(9)
            model.zero_grad()
            objective(x, y).backward()
            if seed == 0:  # nobody knew in time that it moves
                model.inner[0].mean.copy_(0.1 * x.mean(0))
        found.append([model.inner[0].mean, *(p.grad for p in model.parameters())])
    for a, b in zip(*found, strict=True):
        assert torch.allclose(a, b, rtol=1e-12, atol=1e-14)


def test_evaluation_first_and_training_later_is_noticed_as_well() -> None:
    model = network(Centred(in_place=True))
    alone = copy.deepcopy(model)
    objective = RECIPES["vat"](model)
    objective.eval()
    objective(*batch(0))
    objective.train()
    for seed in range(2):
        x, y = batch(seed)
        objective(x, y).backward()
        alone(x)
    assert torch.equal(model[0].mean, alone[0].mean)


class Remembers(nn.Module):
    """A hidden state in an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.hidden = nn.GRUCell(4, 4), None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.hidden = self.cell(x, None if self.hidden is None else self.hidden.detach())
        return self.hidden


class Caches(nn.Module):
    """A list that grows."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(x.detach())
        return x + sum(self.seen)


class Draws(nn.Module):
    """A generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.randn(x.shape, generator=self.generator, dtype=x.dtype)


class Counts(nn.Module):
    """A number that its outputs hang on."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x / self.calls


class Keeps(nn.Module):
    """A state in a dictionary that has had its entries for long."""

    def __init__(self) -> None:
        super().__init__()
        self.state = {"hidden": torch.zeros(4, dtype=torch.double)}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.state["hidden"]
        self.state["hidden"] = x.detach().mean(0)
        return x


class Delegates(nn.Module):
    """The same in an object of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = SimpleNamespace(hidden=0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.cache.hidden
        self.cache.hidden = float(x.detach().mean())
        return x


class Averages(nn.Module):
    """An array of numpy's, changed in place."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = np.zeros(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean += x.detach().mean(0).numpy()
        return x - torch.from_numpy(self.mean.copy())


class Throws(nn.Module):
    """A generator outside torch."""

    def __init__(self, generator: object) -> None:
        super().__init__()
        self.generator = generator

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.generator.random()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (Remembers, "0.hidden"),
        (Caches, "0.seen"),
        (Draws, "0.generator"),
        (Counts, "0.calls"),
        (Keeps, "0.state"),
        (Delegates, "0.cache"),
        (Averages, "0.mean"),
        (lambda: Throws(random.Random(0)), "0.generator"),
        (lambda: Throws(np.random.default_rng(0)), "0.generator"),
    ],
)
@pytest.mark.parametrize("name", ["vat", "free_lb"])
def test_other_memory_is_refused_by_name(name: str, kind: Callable[[], nn.Module], what: str) -> None:
    objective = RECIPES[name](network(kind()))
    for _ in range(2):  # whoever tries again is told again
        with pytest.raises(RuntimeError, match=f"changes {what} in each call"):
            objective(*batch(0))


def test_inputs_changed_in_place_are_refused() -> None:
    class Shifts(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x -= 1.0
            return x

    for inputs in (lambda x: x, lambda x: (x,), lambda x: {"input": x}):
        x, y = batch(0)
        with pytest.raises(RuntimeError, match="changes its inputs in place"):
            RECIPES["vat"](network(Shifts()))(inputs(x), y)


def test_an_input_whose_parts_are_replaced_is_refused() -> None:
    """As many models of graphs do with the one object that holds their batch."""

    class Replaces(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4).double()

        def forward(self, graph: SimpleNamespace) -> torch.Tensor:
            graph.store.x = torch.tanh(self.layer(graph.store.x))
            return graph.store.x

    x, y = batch(0)
    graph = SimpleNamespace(store=SimpleNamespace(x=x))
    with pytest.raises(RuntimeError, match="changes its inputs in place"):
        RECIPES["r_drop"](network(Replaces()))(graph, y)


class Harmless(nn.Module):
    """Things that are set anew in each call, counted, or cut twice to the same."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.noise = torch.randn_like(x) + random.random()
        self.auxiliary = (x.clamp_(-1, 1) * self.noise).mean()
        return x + self.noise


def test_what_changes_nothing_is_left_alone() -> None:
    model = network(Harmless())
    objective = RECIPES["vat"](model)
    x, y = batch(0)
    objective(x, y)
    assert objective.diagnostics["forward_passes"] == 3
    calls = model[0].calls
    objective(*batch(1)).backward()
    assert objective.diagnostics["forward_passes"] == 3
    assert model[0].calls == calls + 1  # as the clean pass left it


def test_attributes_of_the_clean_pass_keep_their_graph() -> None:
    """A model may hand over a loss of its own in an attribute; running it again must not leave one without a graph there."""

    class Auxiliary(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.auxiliary = x.square().mean()
            return x

    model = nn.Sequential(nn.Linear(4, 4), Auxiliary(), nn.Linear(4, 3)).double()
    x, y = batch(0)
    term = sp.Term(at=sp.Input(), by=sp.Noise(sp.L2(0.1)), penalty=sp.kl)
    objective = sp.Objective(model, sp.cross_entropy, term, outputs=lambda z: z + 0 * model[1].auxiliary)
    (objective(x, y) + model[1].auxiliary).backward()
    assert model[0].weight.grad is not None


class Measured(nn.Module):
    """Hands over a figure of its own in an attribute."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.auxiliary = x.square().mean()
        return x


@pytest.mark.parametrize("name", RECIPES)
def test_attributes_after_a_step_are_those_of_the_first_pass(name: str) -> None:
    """What the model says of the clean inputs, not of the perturbed ones; with labels, not of the unlabelled ones."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.2), Measured(), nn.Linear(4, 3)).double()
    objective = RECIPES[name](model)
    seen: list[torch.Tensor] = []
    model[2].register_forward_hook(lambda module, inputs, output: seen.append(module.auxiliary))
    for seed in range(3):
        x, y = batch(seed)
        for loss in objective.steps(x, y):
            loss.backward()
        assert len({value.item() for value in seen}) > 1, "every pass says something else"
        assert model[2].auxiliary is seen[0]
        seen.clear()
        if name != "free_lb":
            objective(x, y, unlabelled=batch(9 + seed)[0].repeat(2, 1)).backward()
            assert model[2].auxiliary is seen[0]
            seen.clear()
