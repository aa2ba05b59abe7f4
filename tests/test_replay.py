"""Prefix replay: exact, and it really skips the work."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sparring as sp


def counted(model: nn.Module) -> Counter[str]:
    """Counts real runs of each module's own computation (its class's forward)."""
    runs: Counter[str] = Counter()
    for name, module in model.named_modules():
        inner = type(module).forward

        def forward(*args: Any, name: str = name, module: nn.Module = module, inner: Any = inner) -> Any:
            runs[name] += 1
            return inner(module, *args)

        module.forward = forward
    return runs


def step_of(model: nn.Module, site: Any, x: Tensor, share_noise: bool = True) -> tuple[sp.Objective, Tensor]:
    term = sp.Term(site, sp.PGD(sp.L2(0.5), 2, start=1e-2), sp.kl, share_noise=share_noise)
    objective = sp.Objective(model, sp.cross_entropy, term)
    return objective, objective(x, torch.arange(len(x)) % 3)


def test_modules_before_the_site_run_once() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 8), nn.Tanh()), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    runs = counted(model)
    step_of(model, sp.Output("2"), torch.randn(5, 4))
    assert runs == {"": 4, "0": 1, "0.0": 1, "0.1": 1, "1": 1, "2": 1, "3": 4}


def test_a_module_used_again_after_the_site_runs_for_real() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shared, self.middle, self.head = nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.shared(self.middle(self.shared(x))))

    model = Twice().double()
    runs = counted(model)
    x = torch.randn(5, 4, dtype=torch.float64)
    _, loss = step_of(model, sp.Output("middle"), x)
    assert runs["shared"] == 2 + 3  # twice in the clean pass, then only its second call
    torch.manual_seed(0)
    plain = sp.perturbed_call(model, {sp.Output("middle"): torch.ones(5, 4, dtype=torch.float64)}, x)
    torch.testing.assert_close(plain, model.head(model.shared(model.middle(model.shared(x)) + 1)))
    assert loss.requires_grad


class Begins(nn.Module):
    """Empties the sum that a later module goes on with."""

    def __init__(self, later: nn.Module) -> None:
        super().__init__()
        self.layer, self.later = nn.Linear(4, 4), (later,)

    def forward(self, x: Tensor) -> Tensor:
        self.later[0].total = 0.0
        return self.layer(x)


class GoesOn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.total = nn.Linear(4, 3), 0.0

    def forward(self, x: Tensor) -> Tensor:
        self.total = self.total + self.layer(x)
        return self.total


class Skips(nn.Module):
    """Leaves what it found to a module behind the site, as the two arms of a U do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        self.left = torch.tanh(self.layer(x))
        return self.left


class Joins(nn.Module):
    def __init__(self, other: nn.Module) -> None:
        super().__init__()
        self.layer, self.other = nn.Linear(4, 3), (other,)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x * self.other[0].left)


@pytest.mark.parametrize("kind", ["begins", "skips"])
@pytest.mark.parametrize("unroll", [False, "autograd", "finite_difference"])
def test_modules_that_speak_through_attributes_are_not_replayed(kind: str, unroll: Any) -> None:
    found = []
    for replay in (True, False):
        torch.manual_seed(0)
        last = GoesOn() if kind == "begins" else None
        first = Skips() if last is None else Begins(last)
        model = nn.Sequential(first, nn.Linear(4, 4), nn.Tanh(), Joins(first) if last is None else last).double()
        player = sp.PGD(sp.L2(0.5), 2, start=1e-2, unroll=unroll)
        objective = sp.Objective(model, sp.cross_entropy, sp.Term(sp.Output("1"), player, sp.kl), replay=replay)
        for _ in range(2):
            torch.manual_seed(1)
            loss = objective(torch.randn(5, 4, dtype=torch.float64), torch.arange(5) % 3)
            gradients = torch.autograd.grad(loss, list(model.parameters()))
        found.append([loss, *gradients])
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("how", ["relu_", "add_", "view"])
def test_outputs_changed_in_place_are_not_replayed(how: str) -> None:
    class Careless(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.head = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            if how == "relu_":
                x = torch.relu_(x)
            elif how == "add_":
                x.add_(1.0)
            else:
                x[:, :2].mul_(3.0)
            return self.head(torch.tanh(self.second(x)))

    results = []
    for replay in (True, False):
        torch.manual_seed(0)
        model = Careless().double()
        runs = counted(model)
        term = sp.Term(sp.Output("second"), sp.PGD(sp.L2(0.5), start=1e-2), sp.kl)
        objective = sp.Objective(model, sp.cross_entropy, term, replay=replay)
        loss = objective(torch.randn(5, 4, dtype=torch.float64), torch.arange(5) % 3)
        results.append((loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))))
        assert runs["first"] == 3, "the damaged output must be computed again"
        assert runs["second"] == (1 if replay else 3)
    torch.testing.assert_close(results[0], results[1])


def test_noise_inside_the_prefix_is_repeated_and_noise_after_it_stays_in_step() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5))
            self.middle, self.head = nn.Identity(), nn.Sequential(nn.Dropout(0.5), nn.Linear(16, 3))

        def forward(self, x: Tensor) -> Tensor:
            x = torch.nn.functional.dropout(self.first(x), 0.3)  # noise outside any module
            return self.head(self.middle(x))

    model = Noisy().double()
    site = sp.Output("middle")
    objective = sp.Objective(model, sp.cross_entropy, sp.Term(site, sp.Noise(sp.L2(1.0)), sp.kl))
    x, y = torch.randn(6, 4, dtype=torch.float64), torch.arange(6) % 3
    step = objective.begin(x, y, None, objective.terms)
    step.begin()
    zeros = {site: [torch.zeros_like(step.slots(site)[0].value)]}
    assert torch.equal(step.run(zeros), step.outputs)
    assert torch.equal(step.run(zeros, replay=False), step.outputs)


@pytest.mark.parametrize(("drop_before", "expected"), [(0.0, 1), (0.5, 4)])
def test_fresh_noise_replays_only_a_prefix_without_noise(drop_before: float, expected: int) -> None:
    model = nn.Sequential(
        nn.Linear(4, 8),
        nn.Dropout(drop_before) if drop_before else nn.Tanh(),
        nn.Tanh(),
        nn.Dropout(0.5),
        nn.Linear(8, 3),
    )
    runs = counted(model)
    step_of(model, sp.Output("2"), torch.randn(5, 4), share_noise=False)
    assert runs["0"] == expected


def test_user_hooks_fire_once_per_pass_and_are_not_applied_twice() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    model[0].register_forward_hook(lambda module, args, output: output * 2)
    site = sp.Output("1")
    objective = sp.Objective(model, sp.cross_entropy, sp.Term(site, sp.Noise(sp.L2(1.0)), sp.kl))
    step = objective.begin(torch.randn(5, 4, dtype=torch.float64), torch.arange(5) % 3, None, objective.terms)
    step.begin()
    zeros = {site: [torch.zeros(5, 4, dtype=torch.float64)]}
    assert torch.equal(step.run(zeros), step.outputs)


def test_outputs_that_hold_unknown_objects_are_computed_again() -> None:
    class Box:
        def __init__(self, x: Tensor) -> None:
            self.x = x

    class Boxer(nn.Module):
        def forward(self, x: Tensor) -> Box:
            return Box(x * 2)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.box, self.head = Boxer(), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.box(x).x)

    model = Model()
    runs = counted(model)
    _, loss = step_of(model, sp.Output("head"), torch.randn(5, 4))
    assert runs["box"] == 4
    assert torch.isfinite(loss)


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool = False) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.3))
        self.second = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.3))
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 3)
        self.reentrant, self.on = reentrant, True

    def forward(self, x: Tensor) -> Tensor:
        from torch.utils.checkpoint import checkpoint

        for block in (self.first, self.second):
            x = checkpoint(block, x, use_reentrant=self.reentrant) if self.on else block(x)
        return self.head(self.norm(x))


@pytest.mark.parametrize("at", ["first.0", "second.0", "first.0|second.1", "norm"])
@pytest.mark.parametrize(
    "recipe", [sp.recipes.vat, sp.recipes.adversarial_training, sp.recipes.salt, sp.recipes.free_lb]
)
def test_gradient_checkpointing_changes_nothing(at: str, recipe: Any) -> None:
    results = []
    for on in (True, False):
        torch.manual_seed(0)
        model = Checkpointed().double()
        model.on = on
        options = {"unroll": "finite_difference"} if recipe is sp.recipes.salt else {}
        objective = recipe(model, sp.cross_entropy, at, ball=sp.L2(0.5), **options)
        torch.manual_seed(1)
        x, y = torch.randn(6, 4, dtype=torch.float64), torch.arange(6) % 3
        for loss in objective.steps(x, y):
            loss.backward()
        results.append([loss.detach(), *(p.grad for p in model.parameters())])
        assert not any(m._forward_hooks or "forward" in m.__dict__ for m in model.modules())
    torch.testing.assert_close(results[0], results[1], rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("keep", [None, 1.0])
def test_gradient_checkpointing_recomputes_masks(keep: float | None) -> None:
    results = []
    for on in (True, False):
        torch.manual_seed(0)
        model = Checkpointed().double()
        model.on = on
        objective = sp.Objective(model, sp.cross_entropy, sp.Term(sp.Mask("**", keep=keep), sp.Bernoulli(0.5), sp.js))
        torch.manual_seed(1)
        loss = objective(torch.randn(6, 4, dtype=torch.float64), torch.arange(6) % 3)
        loss.backward()
        results.append([loss.detach(), *(p.grad for p in model.parameters())])
    torch.testing.assert_close(results[0], results[1], rtol=1e-7, atol=1e-10)


def test_reentrant_checkpointing_is_refused_with_the_fix() -> None:
    objective = sp.recipes.vat(Checkpointed(reentrant=True), sp.cross_entropy, "norm")
    x = torch.randn(6, 4, requires_grad=True)
    objective(x, torch.arange(6) % 3)  # the site lies after the checkpointed part: fine
    inner = sp.recipes.vat(Checkpointed(reentrant=True), sp.cross_entropy, "first.0")
    with pytest.raises(RuntimeError, match="use_reentrant=False"):
        inner(x, torch.arange(6) % 3)


class Loop(nn.ModuleList):
    """Modules in a plain loop: to replay them, each must be put aside by itself."""

    def forward(self, x: Tensor) -> Tensor:
        for module in self:
            x = module(x)
        return x


def runs_in_two_steps(model: Loop, x: Tensor) -> list[int]:
    """How often each module runs in two steps of one extra pass."""
    runs = counted(model)
    objective = sp.recipes.vat(
        model, sp.cross_entropy, str(len(model) - 1), by=sp.Noise(sp.L2(1.0)), penalty=sp.squared_error
    )
    for _ in range(2):
        objective(x, torch.arange(len(x)) % 3)
    return [runs[str(i)] for i in range(len(model))]


@pytest.mark.usefixtures("as_installed")
def test_a_prefix_is_replayed_where_that_is_cheaper_than_running_it() -> None:
    x, wide = torch.randn(5, 4), torch.randn(5, 40_000)
    small = [nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)]
    assert runs_in_two_steps(Loop([*small, nn.Linear(4, 3)]), x) == [4, 4, 4, 4], "too little to be worth it"
    many = Loop([nn.Linear(4, 4) if i % 2 else nn.Tanh() for i in range(20)] + [nn.Linear(4, 3)])
    assert runs_in_two_steps(many, x) == [2 if i % 2 else 4 for i in range(20)] + [2], "what has no weights runs again"
    assert runs_in_two_steps(Loop([nn.Tanh(), nn.Linear(40_000, 3)]), wide) == [2, 2], "large outputs"
    heavy = Loop([nn.Linear(40_000, 2), nn.Linear(2, 3)])
    assert runs_in_two_steps(heavy, wide) == [2, 2], "a small output of many weights"


@pytest.mark.usefixtures("as_installed")
def test_what_runs_again_calls_a_module_that_is_replayed_elsewhere() -> None:
    """A container that is too cheap to replay must not use up the outputs that its child gave on its own."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shared = nn.Tanh()
            self.cheap, self.head = nn.Sequential(self.shared), nn.Linear(30_000, 3)

        def forward(self, x: Tensor) -> Tensor:
            small = self.cheap(x[:, :2])
            return self.head(self.shared(x * 2)) * small.mean()

    def loss(replay: bool) -> Tensor:
        torch.manual_seed(0)
        term = sp.Term(sp.Output("head"), sp.Noise(sp.L2(1.0)), sp.squared_error)
        return sp.Objective(Model(), sp.cross_entropy, term, replay=replay)(
            torch.randn(3, 30_000), torch.arange(3)
        ).detach()

    assert torch.equal(loss(True), loss(False))
