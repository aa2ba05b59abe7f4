"""Whatever changes between or within steps, replay gives what a pass without it gives: nothing learned earlier goes stale."""

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import sparring as sp

X, Y = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 3
Change = Callable[[nn.Module, int], None]


def nothing(model: nn.Module, number: int) -> None:
    pass


def chain(*more: nn.Module, drop: float = 0.3) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(4, 8), nn.Tanh(), nn.Dropout(drop), nn.Linear(8, 8), *more, nn.Dropout(0.3), nn.Linear(8, 3)
    )


def run(model: nn.Module, at: Any, replay: bool, change: Change = nothing, steps: int = 4) -> list[list[Tensor]]:
    """Loss and gradients of some steps, with a change of the model before each; numpy and Python are seeded too."""
    model = copy.deepcopy(model).double()
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    sites = at if isinstance(at, tuple) else (at,)
    terms = [sp.Term(site, sp.PGD(sp.L2(0.5), start=1e-2), sp.kl) for site in sites]
    objective = sp.Objective(model, sp.cross_entropy, *terms, replay=replay)
    found = []
    for number in range(steps):
        change(model, number)
        loss = objective(X[: 6 - number], Y[: 6 - number])
        loss.backward()
        grads = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]
        found.append([loss.detach(), *grads])
        model.zero_grad()
    assert not any(m._forward_pre_hooks or "forward" in m.__dict__ for m in model.modules())
    return found


def same(model: nn.Module, at: Any, change: Change = nothing) -> None:
    """Losses bit for bit; gradients are added up in another order."""
    for with_replay, without in zip(run(model, at, True, change), run(model, at, False, change), strict=True):
        assert torch.equal(with_replay[0], without[0])
        torch.testing.assert_close(with_replay, without, rtol=1e-9, atol=1e-12)


def replaces(model: nn.Module, number: int) -> None:
    if number == 2:
        torch.manual_seed(5)
        model[3] = nn.Linear(8, 8).double()  # type: ignore[index]


def switches_mode(model: nn.Module, number: int) -> None:
    model[2].train(number % 2 == 1)  # type: ignore[index]


def ties(model: nn.Module, number: int) -> None:
    if number == 1:
        model[3].weight = model[4].weight  # type: ignore[index]


def freezes(model: nn.Module, number: int) -> None:
    model[0].requires_grad_(number % 2 == 0)  # type: ignore[index]


def hooks(model: nn.Module, number: int) -> None:
    if number in (1, 2):
        model[1 if number == 1 else 3].register_forward_hook(lambda *a: a[-1] * 2)  # type: ignore[index]


def inserts(model: nn.Module, number: int) -> None:
    if number == 1:
        model.insert(1, nn.Sigmoid())  # type: ignore[operator]


def patches(model: nn.Module, number: int) -> None:
    model.__dict__.pop("forward", None)
    model[0].__dict__.pop("forward", None)  # type: ignore[index]
    if number == 2:
        model[0].forward = lambda x: nn.Linear.forward(model[0], x) * 3  # type: ignore[index]
    if number == 1:
        model.forward = lambda x: nn.Sequential.forward(model, x * 2)  # type: ignore[arg-type]


@pytest.mark.parametrize("change", [nothing, replaces, switches_mode, ties, freezes, hooks, inserts, patches])
@pytest.mark.parametrize("at", ["4", "5"])
def test_a_change_between_steps_is_noticed(change: Change, at: str) -> None:
    same(chain(nn.Linear(8, 8), drop=0.3), sp.Output(at), change)


def test_a_hook_that_comes_later_sees_every_pass() -> None:
    model, seen = chain(nn.Linear(8, 8), drop=0.0), []
    objective = sp.recipes.vat(model, sp.cross_entropy, "5")
    for number in range(4):
        if number == 1:
            model[1].register_forward_hook(lambda *_: seen.append(1))
        seen.clear()
        objective(X.float(), Y)
        assert len(seen) == (3 if number else 0)


class Wilful(nn.Module):
    """A forward of its own, made of `body(self, x)`."""

    def __init__(self, body: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.body = body
        self.a, self.b, self.site, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.act, self.drop = nn.Tanh(), nn.Dropout(0.4)
        self.seq = nn.Sequential(
            self.act, self.a, nn.Dropout(0.4), self.act, self.site, nn.LeakyReLU(0.5, inplace=True)
        )
        self.pair = nn.Sequential(self.a, self.drop)
        self.early, self.late = Drawing(4, 4), Drawing(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self, x))


def by_children(m: Any, x: Tensor) -> Tensor:
    for child in m.seq:
        x = child(x)
    return x


def damaged_with_a_shared_part(m: Any, x: Tensor) -> Tensor:
    whole = m.pair(x)
    whole.mul_(2.0)
    return m.site(m.a(whole) + m.drop(m.b(x))) + whole


def first_checkpointed(m: Any, x: Tensor) -> Tensor:
    once = checkpoint(m.a, x, use_reentrant=False)
    return m.site(m.a(once) + m.b(x)) + once


def numpy_on_both_sides(m: Any, x: Tensor) -> Tensor:
    m.a(x)
    x = m.b(x * float(np.random.random() + random.random()))
    return m.site(x) * float(np.random.random() + random.random())


class Drawing(nn.Linear):
    """Draws inside, by every generator, as SpecAugment does."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * float(np.random.random() + random.random() + torch.rand(()))


def inline_noise(m: Any, x: Tensor) -> Tensor:
    return F.dropout(m.site(m.b(F.dropout(m.drop(m.a(x)), 0.5))), 0.5)


BODIES = {
    "a Sequential": lambda m, x: m.seq(x),
    "a Sequential by its children": by_children,
    "a Sequential called by keyword": lambda m, x: m.seq(input=x),
    "a Sequential without the site before the one with it": lambda m, x: m.seq(m.seq[:3](x)),
    "a child called before its Sequential": lambda m, x: m.seq(m.a(m.act(x))),
    "a damaged output with a shared part": damaged_with_a_shared_part,
    "first in a checkpointed region, then outside": first_checkpointed,
    "numpy and Python before and after": numpy_on_both_sides,
    "numpy and Python inside modules": lambda m, x: m.late(m.site(m.early(x))),
    "noise outside any module": inline_noise,
    "changed after the site": lambda m, x: F.leaky_relu_(m.site(m.a(x)), 0.5),
    "a pass that takes another way each time": lambda m, x: m.seq(x) if m.training and len(x) % 2 else m.site(m.b(x)),
}


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("at", ["site", "site+input"])
def test_any_way_of_calling_modules(body: str, at: str) -> None:
    site = sp.Output("site")
    same(Wilful(BODIES[body]), site if at == "site" else (site, sp.Input()))


class Twice(nn.Sequential):
    def forward(self, input: Tensor) -> Tensor:
        for module in self:
            input = module(input) * 2
        return input


def test_a_sequential_with_a_forward_of_its_own_is_no_span() -> None:
    same(Twice(*chain(nn.Linear(8, 8))), sp.Output("4"))


@pytest.mark.parametrize("deep", [False, True])
def test_the_children_of_a_sequential_are_not_even_called(deep: bool) -> None:
    """The span before the site is skipped as one: its modules are called once a step, not once a pass."""
    model = nn.Sequential(*(nn.Tanh() for _ in range(100)), nn.Linear(4, 3))
    if deep:
        model = nn.Sequential(nn.Identity(), model)
    at = "1.100" if deep else "100"
    objective = sp.recipes.vat(model, sp.cross_entropy, at)
    calls, real = 0, nn.Tanh.__call__
    for number in range(3):
        calls = 0

        def counting(self: nn.Module, *args: Any) -> Any:
            nonlocal calls
            calls += 1
            return real(self, *args)

        nn.Tanh.__call__ = counting  # type: ignore[method-assign]
        try:
            objective(X.float(), Y)
        finally:
            del nn.Tanh.__call__
        assert calls == 100, f"step {number}"


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize("drop", [0.0, 0.3])
def test_long_prefixes_run_cheap_modules_again(drop: float, as_installed: None) -> None:
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layers = [nn.Linear(4, 4) if i % 10 == 0 else nn.Dropout(drop) for i in range(100)]
            self.layers, self.head = nn.ModuleList(layers), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x)
            return self.head(x)

    model = Loop()
    same(model, sp.Output("head"))
    objective = sp.recipes.vat(model, sp.cross_entropy, "head")
    objective(X.float(), Y)
    (prefix,) = objective._ground.prefixes.values()
    assert {type(module) for module in prefix.units or ()} == {nn.Linear}
