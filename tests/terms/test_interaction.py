"""The diagnostic of SALT's interaction term: exact against the gradients with and without it, and silent about everything else."""

import copy
import gc
import warnings
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import sparring as sp

X = torch.randn(12, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
MORE = torch.randn(9, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
Y = torch.arange(12) % 4
BACK_ENDS = ["autograd", "finite_difference"]


def network(*, normed: bool = False) -> Any:
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4)).double()
    with torch.no_grad():
        model[2].weight.mul_(3)  # curvature, so that the interaction is a share of the gradient that can be seen
    if normed:
        model.insert(1, nn.BatchNorm1d(16).double())
    return model


def build(model: nn.Module, **words: Any) -> sp.Objective:
    at = next(name for name, module in model.named_modules() if isinstance(module, nn.Linear))
    given: dict[str, Any] = {"ball": sp.L2(0.5), "start": 0.1} | words
    return sp.recipes.salt(model, sp.cross_entropy, at, **given)


def gradient(objective: sp.Objective, **given: Any) -> Tensor:
    torch.manual_seed(3)
    loss = objective(X, Y, **given)
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(objective.model.parameters()))])


def ratio(with_it: Tensor, without: Tensor) -> float:
    return float((with_it - without).norm() / without.norm())


@pytest.mark.parametrize("unroll", BACK_ENDS)
@pytest.mark.parametrize("words", [{}, {"interaction": 0.3}, {"steps": 2, "update": "adam"}, {"weight": 5.0}], ids=str)
def test_is_the_length_of_the_difference_over_the_length_of_the_rest(unroll: Any, words: dict[str, Any]) -> None:
    model = network()
    whole = gradient(objective := build(model, unroll=unroll, measure_interaction_every=1, **words))
    expected = ratio(whole, gradient(build(model, unroll=unroll, **(words | {"interaction": 0.0}))))
    assert expected > 1e-3
    assert objective.diagnostics["salt/interaction"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("unroll", BACK_ENDS)
@pytest.mark.parametrize("normed", [False, True], ids=["joint", "apart"])
def test_unlabelled_examples_count_where_they_are_asked_to(unroll: Any, normed: bool) -> None:
    model = network(normed=normed)
    given = {"unlabelled": MORE}
    state = copy.deepcopy(model.state_dict())
    whole = gradient(objective := build(model, unroll=unroll, interaction=1.0, measure_interaction_every=1), **given)
    model.load_state_dict(state)
    constant = gradient(build(model, unroll=unroll, interaction=0.0), **given)
    found = objective.diagnostics
    if not normed:
        assert found["salt/interaction"] == pytest.approx(ratio(whole, constant), rel=1e-3)
        return
    # Each batch has a game of its own, and both are compared with the gradient of the whole objective.
    parts = found["salt/interaction"], found["unlabelled/salt/interaction"]
    assert min(parts) > 1e-3
    assert abs(parts[0] - parts[1]) <= ratio(whole, constant) * (1 + 1e-3)
    assert sum(parts) >= ratio(whole, constant) * (1 - 1e-3)


def test_each_of_two_unrolled_terms_has_its_own() -> None:
    model = network()

    def both(first: float, second: float, **options: Any) -> sp.Objective:
        terms = [
            sp.Term(sp.Output(at), sp.PGD(sp.L2(0.5), start=0.1, unroll="autograd", interaction=share), sp.kl, name=at)
            for at, share in (("0", first), ("2", second))
        ]
        return sp.Objective(model, sp.cross_entropy, *terms, **options)

    gradient(objective := both(1.0, 1.0, measure_interaction_every=1))
    neither = gradient(both(0.0, 0.0))
    for name, shares in (("0", (1.0, 0.0)), ("2", (0.0, 1.0))):
        expected = ratio(gradient(both(*shares)), neither)
        assert objective.diagnostics[f"{name}/interaction"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("unroll", BACK_ENDS)
def test_under_autocast_it_is_close_to_that_of_full_precision(unroll: Any) -> None:
    model, found = network().float(), []
    for low in (False, True):
        objective = build(model, unroll=unroll, weight=4.0, measure_interaction_every=1)
        torch.manual_seed(3)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=low):
            objective(X.float(), Y)
        found.append(objective.diagnostics["salt/interaction"])
    assert found[0] > 0.02
    assert found[1] == pytest.approx(found[0], rel=0.2)


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, *rest = network()
        self.rest = nn.Sequential(*rest, nn.Dropout(0.3))

    def forward(self, x: Tensor) -> Tensor:
        out = checkpoint(self.rest, self.first(x), use_reentrant=False)
        assert isinstance(out, Tensor)
        return out


@pytest.mark.parametrize("unroll", BACK_ENDS)
@pytest.mark.parametrize(
    "make", [network, lambda: network(normed=True), Checkpointed], ids=["plain", "norm", "checkpointed"]
)
def test_measuring_changes_no_gradient_and_no_statistics(unroll: Any, make: Any) -> None:
    found = []
    for every in (0, 1):
        model = make()
        objective = build(model, unroll=unroll, measure_interaction_every=every)
        found.append((gradient(objective), dict(model.named_buffers()), torch.get_rng_state()))
        assert ("salt/interaction" in objective.diagnostics) == bool(every)
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][2], found[1][2])
    for name, value in found[0][1].items():
        assert torch.equal(value, found[1][1][name]), name


@pytest.mark.parametrize("unroll", BACK_ENDS)
def test_one_warning_where_it_dominates(unroll: Any) -> None:
    """A confident model and nobody who holds its predictions: no labels."""
    model = network()
    with torch.no_grad():
        model[2].weight.mul_(3)
        model[4].weight.mul_(6)
    objective = build(model, unroll=unroll, ball=sp.L2(2.0), start=0.01, interaction=1.0)
    said: list[tuple[str, str]] = []
    seen: list[Any] = []
    for _ in range(12):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.manual_seed(3)
            objective(X)
        said += [(w.filename, str(w.message)) for w in caught]
        seen.append(objective.diagnostics.get("salt/interaction"))
    assert [number for number, value in enumerate(seen) if value is not None] == [1, 10]
    assert seen[1] > 1, "the scene must be one where it dominates"
    [(place, text)] = said
    assert place == __file__, "it points at the line that asked for the loss"
    assert f"salt: the interaction term is {seen[1]:.3g} times as long" in text
    assert "interaction=0.1" in text


def test_nothing_is_said_or_noted_where_nothing_is_unrolled() -> None:
    objective = build(network(), unroll=False, measure_interaction_every=1)
    for _ in range(3):
        objective(X, Y)
    assert "salt/interaction" not in objective.diagnostics
    with torch.no_grad():
        unrolled = build(network(), measure_interaction_every=1)
        unrolled(X, Y)
    assert "salt/interaction" not in unrolled.diagnostics


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # dynamo's own
def test_a_compiled_part_is_left_unmeasured_or_refused() -> None:
    model = network()
    model[2] = torch.compile(model[2], backend="aot_eager")
    objective = build(model, unroll="finite_difference")
    for _ in range(2):
        objective(X, Y).backward()
    assert "salt/interaction" not in objective.diagnostics
    with pytest.raises(ValueError, match="compiled"):
        build(model, unroll="finite_difference", measure_interaction_every=1)(X, Y)


def test_the_note_keeps_no_graph_alive() -> None:
    model = network()
    objective = build(model, measure_interaction_every=1)
    loss = objective(X, Y)
    root = weakref.ref(loss)
    del loss
    gc.collect()
    assert root() is None
    assert copy.deepcopy(objective).diagnostics == objective.diagnostics
