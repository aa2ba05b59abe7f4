"""Sites: where things are placed, and that torch's own numbers come out when nothing is."""

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sparring as sp
from sparring.nn.matching import pattern


@pytest.mark.parametrize(("glob", "name", "fits"), [
    ("a", "a", True), ("a", "ab", False), ("a.*", "a.b", True), ("a.*", "a.b.c", False), ("a.**", "a.b.c", True), ("*.b", "a.b", True),
    ("?", "a", True), ("a|b.*", "b.c", True), ("a|b", "c", False), ("**", "", True), ("a+", "aa", False),
])  # fmt: skip
def test_globs(glob: str, name: str, fits: bool) -> None:
    assert bool(pattern(glob).fullmatch(name)) == fits


@pytest.mark.parametrize(
    "layer", [nn.Dropout(0.4), nn.Dropout1d(0.4), nn.Dropout2d(0.4), nn.Dropout3d(0.4)], ids=lambda m: type(m).__name__
)
@pytest.mark.parametrize("training", [True, False])
def test_a_watched_dropout_draws_what_torch_draws(layer: nn.Module, training: bool) -> None:
    dims = {"Dropout": 2, "Dropout1d": 3, "Dropout2d": 4, "Dropout3d": 5}[type(layer).__name__]
    x = torch.randn(3, 5, 4, 4, 4)[(..., *(0,) * (5 - dims))]
    model = nn.Sequential(layer).train(training)
    torch.manual_seed(1)
    expected = model(x)
    torch.manual_seed(1)
    found, seen = sp.perturbed_call(model, {sp.Mask("0"): {}}, x, record=True)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
    assert seen[sp.Mask("0")]["0"].shape[:2] == x.shape[:2]


def test_mask_base_and_sharing() -> None:
    model = nn.Sequential(nn.Dropout(0.5))
    x = torch.ones(4, 6, 3)
    _, seen = sp.perturbed_call(model, {(site := sp.Mask("0", keep=1.0)): {}}, x, record=True)
    assert torch.equal(seen[site]["0"], torch.ones(4, 6, 3))
    outputs, seen = sp.perturbed_call(model, {(site := sp.Mask("0", share=(1,))): {}}, x, record=True)
    assert seen[site]["0"].shape == (4, 1, 3)
    assert torch.equal(outputs, outputs[:, :1].expand_as(outputs))
    _, seen = sp.perturbed_call(model, {(site := sp.Mask("0", keep=0.25)): {}}, torch.ones(2000, 1, 3), record=True)
    assert set(seen[site]["0"].unique().tolist()) == {0.0, 4.0}
    assert float(seen[site]["0"].mean()) == pytest.approx(1.0, abs=0.1)
    for bad in ({"keep": 0.0}, {"keep": 1.5}, {"share": (0,)}):
        with pytest.raises(ValueError, match="Mask"):
            sp.Mask("0", **bad)


@pytest.mark.parametrize("channels", [False, True])
def test_units_of_a_pooled_sentence_are_not_words(channels: bool) -> None:
    """The dropout of a (B, H) state, or of channels, beside a padding mask (B, T), T = H: the adversary may take any unit."""

    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout1d(0.5) if channels else nn.Dropout(0.5)
            self.embedding, self.out = nn.Embedding(9, 20), nn.Linear(20, 3)

        def forward(self, words: Tensor) -> Tensor:
            vectors = self.embedding(words).transpose(1, 2)  # (B, H, T)
            return self.out(self.drop(vectors).mean(2) if channels else self.drop(vectors.mean(2)))

    torch.manual_seed(0)
    words = torch.randint(1, 9, (6, 20))
    words[:, 2:] = 0
    objective = sp.recipes.adversarial_dropout(
        Pooled(), sp.cross_entropy, at=sp.Mask("drop", keep=1.0), ball=sp.Flips(0.2)
    )
    objective(words, torch.zeros(6, dtype=torch.long), valid=words != 0)
    assert 2 < objective.diagnostics["adversarial_dropout/flips"] <= 4


def test_an_evaluating_learned_dropout_has_a_mask_for_each_example() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 12), nn.Tanh(), sp.nn.BernoulliDropout(12), nn.Linear(12, 4)).eval()
    x, player = torch.randn(5, 3), sp.GreedyFlip(sp.Flips(0.4), start=torch.ones(1, 12))
    (mask,) = sp.metrics.perturb(model, x, sp.Mask(), player).values
    assert mask.shape == (5, 12)
    for k in range(5):
        (alone,) = sp.metrics.perturb(model, x[k : k + 1], sp.Mask(), player).values
        torch.testing.assert_close(mask[k : k + 1], alone)


def test_input_by_position_and_keyword() -> None:
    class Two(nn.Module):
        def forward(self, ids: Tensor, x: Tensor, *, scale: Tensor) -> Tensor:
            return (x + ids) * scale

    ids, x, scale = torch.tensor([[1]]), torch.zeros(1, 1), torch.ones(1, 1)
    one = torch.ones(1, 1)
    assert sp.perturbed_call(Two(), {sp.Input(): one}, ids, x, scale=scale).item() == 2.0
    assert sp.perturbed_call(Two(), {sp.Input("scale"): one}, ids, x, scale=scale).item() == 2.0
    assert sp.perturbed_call(Two(), {sp.Input(1): one * 3}, ids, x, scale=scale).item() == 4.0
    with pytest.raises(ValueError, match="no floating-point tensor"):
        sp.perturbed_call(Two(), {sp.Input("ids"): one}, ids, x, scale=scale)


Pair = namedtuple("Pair", "a b")


@pytest.mark.parametrize(
    ("result", "index"), [((1, 2), 0), ([1, 2], 1), (Pair(1, 2), 1), ({"a": 1, "b": 2}, "b"), ({"a": 1, "b": 2}, 0)]
)
def test_output_of_containers(result: Any, index: Any) -> None:
    class Contain(nn.Module):
        def forward(self, x: Tensor) -> Any:
            tensors = [x * k for k in (1.0, 2.0)]
            if isinstance(result, dict):
                return dict(zip(result, tensors, strict=True))
            return type(result)(*tensors) if hasattr(result, "_fields") else type(result)(tensors)

    model = nn.ModuleDict({"inner": Contain()})
    model.forward = lambda x: model["inner"](x)
    clean = model(torch.ones(1, 1))
    moved = sp.perturbed_call(model, {sp.Output("inner", index=index): torch.full((1, 1), 5.0)}, torch.ones(1, 1))
    assert type(moved) is type(clean)
    values = lambda r: list(r.values()) if isinstance(r, dict) else list(r)
    changes = [(b - a).item() for a, b in zip(values(clean), values(moved), strict=True)]
    expected = list(result).index(index) if isinstance(index, str) else index
    assert changes == [5.0 if k == expected else 0.0 for k in range(2)]


def test_calls_of_one_module_are_separate_slots() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.f = nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            return self.f(x) + 10 * self.f(x)

    x, site = torch.zeros(1, 1), sp.Output("f")
    assert sp.perturbed_call(Twice(), {site: [x + 1, x + 2]}, x).item() == 21.0
    assert sp.perturbed_call(Twice(), {site: {"f#1": x + 1}}, x).item() == 10.0
    with pytest.raises(ValueError, match="more than once"):
        sp.perturbed_call(Twice(), {site: x}, x)
    with pytest.raises(ValueError, match="fired 2 times but 3 values"):
        sp.perturbed_call(Twice(), {site: [x, x, x]}, x)


def test_shapes_must_fit() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5))
    with pytest.raises(ValueError, match="does not fit"):
        sp.perturbed_call(model, {sp.Output("0"): torch.zeros(2, 9)}, torch.zeros(2, 3))
    with pytest.raises(ValueError, match="mask of shape"):
        sp.perturbed_call(model, {sp.Mask("1"): torch.zeros(2, 9)}, torch.zeros(2, 3))


def test_modules_that_never_run_are_named() -> None:
    class Lazy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    with pytest.raises(RuntimeError, match="did not run"):
        sp.perturbed_call(Lazy(), {sp.Output("unused"): torch.zeros(1, 2)}, torch.zeros(1, 2))
    with pytest.raises(RuntimeError, match="did not run"):
        sp.recipes.vat(Lazy(), sp.cross_entropy, "unused")(torch.zeros(1, 2), torch.tensor([0]))


def test_a_site_without_effect_is_named() -> None:
    class Detached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(x).detach())

    with pytest.raises(RuntimeError, match="do not depend"):
        sp.recipes.vat(Detached(), sp.cross_entropy, "a")(torch.zeros(1, 2), torch.tensor([0]))


def test_members_keep_the_arguments_behind_the_first() -> None:
    class Sum(nn.Module):
        def forward(self, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
            return x + 10 * y + 100 * z

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Sum()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x, 2 * x, 3 * x)

    site = sp.ensembles.MemberInput("inner")
    found = sp.perturbed_call(Outer(), {site: torch.full((2, 1), 0.5)}, torch.ones(2, 1))
    assert found.tolist() == [[321.5], [321.5]]


class Halving(nn.Sequential):
    """Works on its inputs before any hook does."""

    def __call__(self, input: Tensor) -> Any:
        return super().__call__(input / 2)


@pytest.mark.parametrize("front", ["nothing", "hook", "global hook", "call"])
def test_a_tensor_and_a_tuple_of_one_are_perturbed_at_the_same_place(front: str) -> None:
    """What stands in front of the model's forward, of whatever kind, comes before the perturbation."""
    torch.manual_seed(0)
    model = (Halving if front == "call" else nn.Sequential)(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    halve = lambda module, given: (given[0] / 2,) if module is model else None
    handle = None
    if front == "hook":
        handle = model.register_forward_pre_hook(halve)
    elif front == "global hook":
        handle = nn.modules.module.register_module_forward_pre_hook(halve)
    try:
        objective = sp.recipes.adversarial_training(model, sp.cross_entropy, ball=sp.L2(1.0))
        x, y = torch.randn(3, 4), torch.arange(3)
        assert objective(x, y) == objective((x,), y)
    finally:
        if handle is not None:
            handle.remove()


def test_an_input_is_perturbed_at_the_door_without_a_trace_on_the_model() -> None:
    class Looks(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(("forward" in self.__dict__, len(self._forward_pre_hooks)))
            return x

    seen: list[tuple[bool, int]] = []
    model, site = Looks(), sp.Input()
    x, shift = torch.randn(3, 4), torch.randn(3, 4)
    assert torch.equal(sp.perturbed_call(model, {site: shift}, x), x + shift)
    objective = sp.Objective(model, sp.squared_loss, sp.Term(site, sp.Noise(sp.L2(1.0)), sp.squared_error))
    step = objective.begin(x, torch.zeros(3, 4), None, objective.terms)
    step.begin()
    assert torch.equal(step.run({site: [shift]}), x + shift)
    assert seen[-1] == (False, 0)


def test_an_input_is_perturbed_behind_the_hooks_in_front_of_the_model() -> None:
    model = nn.Identity()
    model.register_forward_pre_hook(lambda _, args: (2 * args[0],))
    x, shift = torch.randn(3, 4), torch.randn(3, 4)
    outputs, seen = sp.perturbed_call(model, {sp.Input(): shift}, x, record=True)
    assert torch.equal(outputs, 2 * x + shift)
    assert torch.equal(seen[sp.Input()]["input"], 2 * x)
    objective = sp.Objective(model, sp.squared_loss, sp.Term(sp.Input(), sp.Noise(sp.L2(1.0)), sp.squared_error))
    step = objective.begin(x, torch.zeros(3, 4), None, objective.terms)
    step.begin()
    assert torch.equal(step.run({sp.Input(): [shift]}), 2 * x + shift)


def test_an_input_of_another_kind_is_installed_as_it_says() -> None:
    @dataclass(frozen=True)
    class Doubled(sp.Input):
        def install(self, name, module, visit):
            return super().install(name, module, lambda name, value: visit(name, 2 * value))

    x, shift = torch.randn(3, 4), torch.randn(3, 4)
    assert torch.equal(sp.perturbed_call(nn.Identity(), {Doubled(): shift}, x), 2 * x + shift)
    objective = sp.Objective(nn.Identity(), sp.squared_loss, sp.Term(Doubled(), sp.Noise(sp.L2(1.0)), sp.squared_error))
    step = objective.begin(x, torch.zeros(3, 4), None, objective.terms)
    step.begin()
    assert torch.equal(step.run({Doubled(): [shift]}), 2 * x + shift)
