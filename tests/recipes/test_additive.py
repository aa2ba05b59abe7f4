"""The additive recipes against their papers' definitions, written out by hand."""

import copy
import itertools
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sparring as sp
from sparring import recipes


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 3)).double()


def data(seed: int = 1) -> tuple[Tensor, Tensor]:
    torch.manual_seed(seed)
    return torch.randn(6, 4, dtype=torch.float64), torch.randint(3, (6,))


def test_smart_proximal_term_equals_an_explicit_average() -> None:
    """mu * symmetric KL to a copy whose weights follow theta~ <- beta theta~ + (1 - beta) theta after every update."""
    model = network().eval()
    decay = lambda updates: 0.5 if updates < 2 else 0.9
    objective = recipes.smart(model, sp.cross_entropy, "0", proximal_weight=0.7, weight=0.0, decay=decay)
    objective.train()
    model.eval()
    twin = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for update in range(4):
        x, y = data(update)
        with torch.no_grad():
            target = twin(x)
        expected = sp.cross_entropy(model(x), y).mean() + 0.7 * sp.symmetric_kl(model(x), target).mean()
        loss = objective(x, y)
        torch.testing.assert_close(loss, expected)
        again = objective(x, y)  # accumulation: a second call before the update must not move the average
        torch.testing.assert_close(again, expected)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        beta = decay(update + 1)
        with torch.no_grad():
            for slow, fast in zip(twin.parameters(), model.parameters(), strict=True):
                slow.mul_(beta).add_(fast, alpha=1 - beta)


def test_smart_state_round_trips() -> None:
    objective = recipes.smart(network(), sp.cross_entropy, "0")
    other = recipes.smart(network(), sp.cross_entropy, "0")
    objective.stateful[0].average0.add_(1.0)
    other.load_state_dict(objective.state_dict())
    assert torch.equal(other.stateful[0].average0, objective.stateful[0].average0)
    assert len(list(objective.parameters())) == len(list(objective.model.parameters()))


def by_hand(model: nn.Module, deltas: list[Tensor], x: Tensor, y: Tensor, noise: Any) -> list[Tensor]:
    """Average gradient of the supervised loss over given perturbations of module 0's output, same dropout in each."""
    total = [torch.zeros_like(p) for p in model.parameters()]
    for delta in deltas:
        with sp.nn.randomness.drawing_from(noise):
            outputs = sp.perturbed_call(model, {sp.Output("0"): delta}, x)
        gradients = torch.autograd.grad(sp.cross_entropy(outputs, y).mean(), list(model.parameters()))
        total = [t + g / len(deltas) for t, g in zip(total, gradients, strict=True)]
    return total


@pytest.mark.parametrize("how", ["copied", "pickled"])
def test_a_copy_of_smart_follows_its_own_model(how: str) -> None:
    objective = recipes.smart(network(), sp.cross_entropy, "0")
    twin = copy.deepcopy(objective) if how == "copied" else pickle.loads(pickle.dumps(objective))
    twin(*data())
    with torch.no_grad():
        for parameter in twin.model.parameters():
            parameter.add_(1.0)
    twin(*data())
    gone = twin.model[0].bias.detach() - twin.stateful[0].averages["0.bias"]
    torch.testing.assert_close(gone, torch.full((8,), 0.99, dtype=torch.float64))
    assert int(objective.stateful[0].updates) == 0


@pytest.mark.parametrize("how", ["state", "copy", "pickle"])
def test_smart_goes_on_exactly_after_a_checkpoint(how: str) -> None:
    def train(objective: Any, updates: int) -> list[float]:
        optimizer = torch.optim.SGD(objective.model.parameters(), lr=0.5)
        losses = []
        for update in range(updates):
            torch.manual_seed(update)
            loss = objective(*data())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    objective = recipes.smart(network(), sp.cross_entropy, "0")
    train(objective, 3)
    if how == "state":
        resumed = recipes.smart(network(), sp.cross_entropy, "0")
        resumed.load_state_dict(copy.deepcopy(objective.state_dict()))
    else:
        resumed = copy.deepcopy(objective) if how == "copy" else pickle.loads(pickle.dumps(objective))
    assert train(resumed, 3) == train(objective, 3)
    assert int(resumed.stateful[0].updates) == int(objective.stateful[0].updates) == 5


@pytest.mark.parametrize("penalty", [None, sp.kl])
def test_free_lb_measures_the_same_loss_without_gradients(penalty: Any) -> None:
    objective = recipes.free_lb(network().eval(), sp.cross_entropy, "0", steps=3, penalty=penalty)
    torch.manual_seed(3)
    expected = objective(*data())
    torch.manual_seed(3)
    with torch.no_grad():
        measured = objective(*data())
        alike = sum(objective.steps(*data()))
    assert not measured.requires_grad
    assert not alike.requires_grad
    torch.testing.assert_close(measured, expected.detach())


@pytest.mark.parametrize("how", ["steps", "forward"])
def test_free_lb_gradient_is_the_average_of_its_passes(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = network()
    x, y = data()
    objective = recipes.free_lb(model, sp.cross_entropy, "0", ball=sp.L2(0.5), steps=3, step_size=0.3)
    passes: list[Any] = []
    run = sp.passes.one.Pass.run
    monkeypatch.setattr(
        sp.passes.one.Pass, "run", lambda self, *a, **k: (passes.append((self, k["noise"])), run(self, *a, **k))[1]
    )
    if how == "steps":
        losses = []
        for loss in objective.steps(x, y):
            loss.backward()
            losses.append(loss)
        assert len(losses) == 3
    else:
        objective(x, y).backward()
    found = [p.grad.clone() for p in model.parameters()]
    monkeypatch.undo()
    deltas = [one.slots[sp.Output("0")][0].placed.detach() for one, _ in passes]
    assert len(deltas) == 3
    torch.testing.assert_close(found, by_hand(model, deltas, x, y, passes[0][1]))
    # each delta is one normalised ascent step from the one before
    for before, after in itertools.pairwise(deltas):
        point = before.clone().requires_grad_()
        with sp.nn.randomness.drawing_from(passes[0][1]):
            outputs = sp.perturbed_call(model, {sp.Output("0"): point}, x)
        (gradient,) = torch.autograd.grad(sp.cross_entropy(outputs, y).sum(), point)
        moved = before + 0.3 * gradient / gradient.norm(dim=1, keepdim=True)
        torch.testing.assert_close(after, moved * (0.5 / moved.norm(dim=1, keepdim=True)).clamp_max(1))


def test_free_lb_as_a_regulariser() -> None:
    model = network()
    model[2].p = 0.0
    x, y = data()
    objective = recipes.free_lb(model, sp.cross_entropy, "0", ball=sp.L2(0.5), steps=2, penalty=sp.kl, weight=0.6)
    torch.manual_seed(3)
    (loss,) = objective.steps(x, y)
    torch.manual_seed(3)
    start = objective.diagnostics["mean_loss"]
    clean = sp.cross_entropy(model(x), y).mean()
    torch.testing.assert_close(loss, clean + start)
    assert start > 0


def test_free_at_carries_delta_over() -> None:
    """K replays, an update after each; delta_{k+1} = clip(delta_k + eps sign(gradient at delta_k))."""
    model = network()
    model[2].p = 0.0
    x, y = data()
    objective = recipes.free_at(model, sp.cross_entropy, "0", ball=sp.Linf(0.2), steps=3, step_size=0.15)
    assert objective.update_each_loss
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    delta = torch.zeros(6, 8, dtype=torch.float64)
    for _ in range(2):  # two batches of the same shape: the perturbation lives on
        for loss in objective.steps(x, y):
            point = delta.clone().requires_grad_()
            expected = sp.cross_entropy(sp.perturbed_call(model, {sp.Output("0"): point}, x), y)
            torch.testing.assert_close(loss, expected.mean())
            (gradient,) = torch.autograd.grad(expected.sum(), point)
            delta = (delta + 0.15 * gradient.sign()).clamp(-0.2, 0.2)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        objective.terms[0].ascend()
        torch.testing.assert_close(objective.terms[0].carried.deltas[0], delta)
    loaded = recipes.free_at(network(), sp.cross_entropy, "0", ball=sp.Linf(0.2))
    loaded.load_state_dict(objective.state_dict())
    torch.testing.assert_close(loaded.terms[0].carried.deltas[0], delta)


def test_free_at_starts_anew_when_shapes_change() -> None:
    model = network()
    objective = recipes.free_at(model, sp.cross_entropy, "0", ball=sp.Linf(0.2))
    x, y = data()
    for batch in ((x, y), (x[:4], y[:4])):
        for loss in objective.steps(*batch):
            loss.backward()
    assert objective.terms[0].carried.deltas[0].shape == (4, 8)


def test_vat_power_iteration_by_hand() -> None:
    model = network().eval()
    x, y = data()
    torch.manual_seed(5)
    loss = recipes.vat(model, sp.cross_entropy, ball=sp.L2(0.9), start=0.1, weight=2.0)(x, y)
    torch.manual_seed(5)
    d = torch.randn_like(x)
    d = (0.1 * d / d.norm(dim=1, keepdim=True)).requires_grad_()
    clean = model(x)
    (gradient,) = torch.autograd.grad(sp.kl(clean.detach(), model(x + d)).sum(), d)
    moved = model(x + 0.9 * gradient / gradient.norm(dim=1, keepdim=True))
    torch.testing.assert_close(
        loss, sp.cross_entropy(clean, y).mean() + 2.0 * sp.kl(clean.detach(), moved).mean(), rtol=1e-6, atol=1e-9
    )


def test_r_drop_is_two_draws_and_their_distance() -> None:
    model = network()
    x, y = data()
    objective = recipes.r_drop(model, sp.cross_entropy, weight=3.0)
    torch.manual_seed(9)
    loss = objective(x, y)
    torch.manual_seed(9)
    first = model(x)
    with sp.nn.randomness.drawing_from(sp.nn.randomness.fresh()):
        second = model(x)
    expected = sp.cross_entropy(first, y) + sp.cross_entropy(second, y) + 1.5 * sp.symmetric_kl(first, second)
    torch.testing.assert_close(loss, expected.mean())
    assert not torch.equal(first, second)


def test_source_and_target_embeddings_have_balls_of_their_own() -> None:
    from scenes import SCENES

    model, inputs, targets, valid = SCENES["seq2seq"].setup()
    objective = recipes.salt(model, sp.cross_entropy, "source|target", ball=sp.L2(0.8), step_size=2.0, start=1e-2)
    objective(inputs, targets, valid)
    assert objective.diagnostics["salt/norm"] == pytest.approx(0.8, rel=1e-4)
    assert objective.diagnostics["salt/at_boundary"] == 1.0


@pytest.mark.parametrize(
    "recipe", [recipes.vat, recipes.salt, recipes.smart, recipes.adversarial_training, recipes.free_lb, recipes.free_at]
)
def test_a_weight_can_ramp_up(recipe: Any) -> None:
    model = network()
    x, y = data()
    objective = recipe(model, sp.cross_entropy, "0", weight=lambda step: 0.0 if step == 0 else 0.25)
    weights = []
    for _ in range(2):
        objective(x, y)
        weights.append(
            next((v for k, v in objective.diagnostics.items() if k.endswith("/weight") and "proximal" not in k), 0.0)
        )
    assert weights == [0.0, 0.25]


def test_vat_looks_several_radii_away_and_one_at_scores() -> None:
    """At a distance of .1 the divergence has no slope worth following; see the page on few labels."""
    model = nn.Sequential(nn.Linear(4, 3))
    looks = [recipes.vat(model, sp.cross_entropy, ball=sp.L2(radius)).terms[0].by.start for radius in (0.5, 2.0)]
    assert looks == [2.5, 10.0]
    attentive = nn.ModuleList([nn.MultiheadAttention(4, 2)])
    assert recipes.vat(attentive, sp.cross_entropy, sp.Scores(), ball=sp.L2(0.5)).terms[0].by.start == 0.5
    assert recipes.vat(model, sp.cross_entropy, start=0.1).terms[0].by.start == 0.1
