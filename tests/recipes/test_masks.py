"""The mask recipes: each loss written out by hand, combinations, and what they cost in passes."""

import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sparring as sp
from sparring.passes.step import Step
from sparring.recipes import adversarial_dropout, expectation_linear, fraternal_dropout, ramp_up, variational_dropout


class Text(nn.Module):
    """Embedding, dropout, LSTM, dropout on the last state, classifier."""

    def __init__(self, size: int = 32, drop: float = 0.0, kind: type[nn.RNNBase] = nn.LSTM) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 6)
        self.early = nn.Dropout(drop)
        self.rnn = kind(6, size, batch_first=True)
        self.drop = nn.Dropout(0.0)
        self.head = nn.Linear(size, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.drop(self.rnn(self.early(self.embedding(tokens)))[0][:, -1]))


X, Y = torch.arange(42).view(6, 7) % 20, torch.tensor([0, 1, 2, 3, 0, 1])


def under(model: nn.Module, mask: Tensor) -> Tensor:
    return sp.perturbed_call(model, {sp.Recurrent("rnn"): mask}, X)


def placed(step: Step) -> list[Tensor]:
    return [slot.placed for slots in step.last.slots.values() for slot in slots if slot.placed is not None]


def test_variational_dropout_is_the_loss_under_one_random_mask_and_runs_once(steps: list[Step]) -> None:
    model = Text()
    objective = variational_dropout(model, sp.cross_entropy, at="rnn", keep=0.8)
    loss = objective(X, Y)
    (mask,) = placed(steps[-1])
    assert mask.shape == (6, 32)
    assert set(mask.unique().tolist()) == {0.0, 1.25}
    torch.testing.assert_close(loss, sp.cross_entropy(under(model, mask), Y).mean())
    assert objective.diagnostics["forward_passes"] == 1


@pytest.mark.parametrize("train_on", ["random", "ones"])
def test_expectation_linear_by_hand(steps: list[Step], train_on: Any) -> None:
    model = Text()
    objective = expectation_linear(model, sp.cross_entropy, at="rnn", keep=0.8, weight=2.0, train_on=train_on)
    loss = objective(X, Y)
    full, random = model(X), under(model, placed(steps[-1])[0])
    supervised = sp.cross_entropy(random if train_on == "random" else full, Y)
    torch.testing.assert_close(loss, (supervised + 2.0 * sp.js(full, random)).mean())


def test_fraternal_dropout_by_hand_and_without_a_detached_side(steps: list[Step]) -> None:
    model = Text()
    objective = fraternal_dropout(model, sp.cross_entropy, at="rnn", keep=0.8, weight=3.0)
    loss = objective(X, Y)
    step = steps[-1]
    first, second = step.slots(objective.terms[0].at)[0].value, placed(steps[-1])[0]
    assert not torch.equal(first, second)
    assert set(first.unique().tolist()) == {0.0, 1.25} == set(second.unique().tolist())
    one, two = under(model, first), under(model, second)
    expected = (0.5 * (sp.cross_entropy(one, Y) + sp.cross_entropy(two, Y)) + 3.0 * sp.js(one, two)).mean()
    torch.testing.assert_close(loss, expected)
    ours = torch.autograd.grad(loss, list(model.parameters()))
    for a, b in zip(ours, torch.autograd.grad(expected, list(model.parameters()))):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("detach", [False, True])
@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_adversarial_dropout_by_hand(steps: list[Step], kind: type[nn.RNNBase], detach: bool, rounds: int) -> None:
    model = Text(kind=kind)
    objective = adversarial_dropout(
        model, sp.cross_entropy, at="rnn", ball=sp.Flips(0.2), steps=rounds, weight=3.0, detach_clean=detach
    )
    loss = objective(X, Y)
    mask = placed(steps[-1])[0].detach()
    assert bool(((mask == 0).sum(1) <= 6).all())
    clean = model(X)
    expected = (
        sp.cross_entropy(clean, Y) + 3.0 * sp.js(clean.detach() if detach else clean, under(model, mask))
    ).mean()
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    for a, b in zip(
        torch.autograd.grad(loss, list(model.parameters())), torch.autograd.grad(expected, list(model.parameters()))
    ):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    found = objective.diagnostics
    assert found["forward_passes"] == 2 + rounds
    assert found["backward_passes"] == 1 + rounds
    assert 0 < found["adversarial_dropout/flips"] <= 6


def test_adversarial_dropout_raises_the_divergence_above_random_masks_of_its_size() -> None:
    torch.manual_seed(0)
    adversarial = random = 0.0
    for _ in range(5):
        model = Text()
        adversarial += float(adversarial_dropout(model, sp.cross_entropy, ball=sp.Flips(0.2))(X).detach())
        mask = sp.Flips(0.2).sample(torch.ones(6, 32), torch.tensor(6))
        random += float(sp.js(model(X), under(model, mask / mask.mean(1, keepdim=True))).mean().detach())
    assert adversarial > 1.5 * random


def test_on_the_last_hidden_state_the_recurrence_runs_once(steps: list[Step], monkeypatch: pytest.MonkeyPatch) -> None:
    model, calls, forward = Text(), [], nn.LSTM.forward
    monkeypatch.setattr(nn.LSTM, "forward", lambda self, *args: calls.append(1) or forward(self, *args))
    objective = adversarial_dropout(model, sp.cross_entropy, at=sp.Mask("drop", keep=1.0), ball=sp.Flips(0.2), steps=2)
    objective(X, Y).backward()
    mask = placed(steps[-1])[0]
    assert mask.shape == (6, 32)
    assert bool(((mask == 0).sum(1) <= 6).all())
    assert len(calls) == 1, "prefix replay: later passes start after the recurrence"


class Language(nn.Module):
    """A two-layer AWD-LSTM in small: the last layer's recurrent weights are dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = sp.nn.EmbeddingDropout(nn.Embedding(20, 6), 0.2)
        self.locked = sp.nn.LockedDropout(0.3)
        self.first = sp.nn.WeightDrop(nn.LSTM(6, 20, batch_first=True), 0.5)
        self.last = sp.nn.WeightDrop(nn.LSTM(20, 20, batch_first=True), 0.5)
        self.head = nn.Linear(20, 20)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.last(self.first(self.locked(self.embedding(tokens)))[0])[0])


@pytest.mark.parametrize("rounds", [1, 2])
def test_on_the_weight_drop_mask_of_a_language_model(steps: list[Step], rounds: int) -> None:
    """Appendix 6: base mask of ones, one mask for the batch, a budget per row, other noise resampled, squared error."""
    model = Language()
    site = sp.RecurrentWeights("last", keep=1.0)
    objective = adversarial_dropout(
        model, sp.cross_entropy, at=site, ball=sp.Flips(0.15), steps=rounds, start="base", share_noise=False, penalty=sp.squared_error,
        detach_clean=True, weight=0.1,
    )  # fmt: skip
    objective(X[:, :-1], X[:, 1:]).backward()
    (mask,) = placed(steps[-1])
    assert mask.shape == (1, 80, 20)
    counts = (mask == 0).sum(-1)
    assert int(counts.max()) == 3
    torch.testing.assert_close(mask.mean(-1), torch.ones(1, 80))
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters())


def test_fraternal_dropout_on_weight_drop_masks_draws_two(steps: list[Step]) -> None:
    model = Language()
    objective = fraternal_dropout(
        model, sp.cross_entropy, at=sp.RecurrentWeights("last"), keep=0.5, penalty=sp.squared_error
    )
    objective(X[:, :-1], X[:, 1:]).backward()
    first, second = steps[-1].slots(objective.terms[0].at)[0].value[0], placed(steps[-1])[0][0]
    assert not torch.equal(first, second)
    assert set(first.unique().tolist()) == {0.0, 2.0} == set(second.unique().tolist())


@pytest.mark.parametrize("site", [sp.Mask("early"), sp.Mask("early", keep=1.0)])
@pytest.mark.parametrize("recipe", [variational_dropout, expectation_linear, fraternal_dropout])
def test_a_dropout_layer_keeps_its_own_rate(steps: list[Step], recipe: Any, site: sp.Mask) -> None:
    model = Text(drop=0.5)
    objective = recipe(model, sp.cross_entropy, at=site)
    objective(X, Y)
    (mask,) = placed(steps[-1])
    assert set(mask.unique().tolist()) == {0.0, 2.0}
    if recipe is not variational_dropout:
        clean = steps[-1].slots(objective.terms[0].at)[0].value
        drawn = recipe is fraternal_dropout and site.keep is None
        assert set(clean.unique().tolist()) == ({0.0, 2.0} if drawn else {1.0})
    given = recipe(model, sp.cross_entropy, at=site, keep=0.8)
    given(X, Y)
    assert set(placed(steps[-1])[0].unique().tolist()) == {0.0, 1.25}
    if recipe is fraternal_dropout and site.keep is None:
        assert set(steps[-1].slots(given.terms[0].at)[0].value.unique().tolist()) == {0.0, 1.25}


def test_fraternal_dropout_draws_both_masks_where_the_layer_draws_none(steps: list[Step]) -> None:
    for site in (sp.Recurrent("rnn"), sp.RecurrentWeights("rnn")):
        objective = fraternal_dropout(Text(), sp.cross_entropy, at=site, keep=0.5)
        objective(X, Y)
        clean = steps[-1].slots(objective.terms[0].at)[0].value
        assert set(clean.unique().tolist()) == {0.0, 2.0} == set(placed(steps[-1])[0].unique().tolist())


def test_different_rates_at_one_site_ask_for_one() -> None:
    with pytest.raises(ValueError, match=r"keep rates 0\.5, 1: give keep="):
        fraternal_dropout(Text(drop=0.5), sp.cross_entropy, at=sp.Mask())
    fraternal_dropout(Text(drop=0.5), sp.cross_entropy, at=sp.Mask(), keep=0.8)(X, Y)


def test_one_clean_pass_serves_adversarial_dropout_and_vat() -> None:
    model = Text()
    vat = sp.recipes.vat(model, sp.cross_entropy, at="embedding", ball=sp.L2(1.0))
    both = adversarial_dropout(model, sp.cross_entropy, at="rnn", ball=sp.Flips(0.2)) + vat
    torch.manual_seed(1)
    loss = both(X, Y)
    found = both.diagnostics
    parts = found["clean_loss"] + found["adversarial_dropout/penalty"] + found[f"{vat.terms[0].name}/penalty"]
    assert float(loss.detach()) == pytest.approx(parts, rel=1e-5)
    alone = adversarial_dropout(model, sp.cross_entropy, at="rnn", ball=sp.Flips(0.2))
    passes = 0.0
    for objective in (alone, vat):
        objective(X, Y)
        passes += objective.diagnostics["forward_passes"]
    assert found["forward_passes"] == passes - 1


@pytest.mark.parametrize("at", ["rnn", sp.Recurrent("rnn"), sp.Mask("drop")])
def test_the_sampled_base_mask_is_an_option(steps: list[Step], at: Any) -> None:
    objective = adversarial_dropout(Text(), sp.cross_entropy, at=at, ball=sp.Flips(0.2), keep=0.7)
    objective(X, Y).backward()
    base = steps[-1].slots(objective.terms[0].at)[0].value
    flips = ((placed(steps[-1])[0] != 0) != (base != 0)).sum(1)
    assert bool((base == 0).any())
    assert bool((flips <= 6).all())
    assert bool((flips > 0).any())


def test_ramp_up_reaches_its_peak() -> None:
    weight = ramp_up(0.1, 100)
    assert weight(100) == weight(1000) == 0.1
    assert weight(0) == pytest.approx(0.1 * 0.0067379, rel=1e-4)
    objective = adversarial_dropout(Text(), sp.cross_entropy, ball=sp.Flips(0.2), weight=ramp_up(1.0, 4))
    seen = []
    for _ in range(6):
        objective(X, Y)
        seen.append(objective.diagnostics["adversarial_dropout/weight"])
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def test_an_objective_with_a_ramp_survives_pickling() -> None:
    objective = adversarial_dropout(Text(), sp.cross_entropy, at="rnn", ball=sp.Flips(0.2), weight=ramp_up(1.0, 10))
    losses = []
    for one in (objective, pickle.loads(pickle.dumps(objective))):
        torch.manual_seed(0)
        losses.append(float(one(X, Y).detach()))
    assert losses[0] == losses[1]


def test_unlabelled_batches_keep_the_regulariser() -> None:
    for recipe in (adversarial_dropout, expectation_linear, fraternal_dropout):
        objective = recipe(
            Text(), sp.cross_entropy, at="rnn", **({"ball": sp.Flips(0.2)} if recipe is adversarial_dropout else {})
        )
        loss = objective(X)
        loss.backward()
        assert float(loss.detach()) > 0


def test_padding_as_long_as_the_state_is_wide_is_not_taken_for_units(steps: list[Step]) -> None:
    model, tokens = Text(size=7), X.clone()
    valid = torch.ones(6, 7, dtype=torch.bool)
    valid[:, 3:] = False
    objective = adversarial_dropout(model, sp.cross_entropy, at="rnn", ball=sp.Flips(0.9))
    objective(tokens, Y, valid)
    assert bool((placed(steps[-1])[0][:, 3:] == 0).any())


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda m: adversarial_dropout(m, sp.cross_entropy, at="rn"), "near names: rnn"),
        (lambda m: adversarial_dropout(m, sp.cross_entropy, at=sp.Output("rnn")), "GreedyFlip plays at mask sites"),
        (lambda m: variational_dropout(m, sp.cross_entropy, keep=0.0), "keep rate"),
        (lambda m: expectation_linear(m, sp.cross_entropy, train_on="both"), "train_on"),
        (lambda m: ramp_up(1.0, 0), r"steps=0"),
        (lambda m: adversarial_dropout(m, sp.cross_entropy, at=sp.Recurrent(layers=(3,))), "has 1 layers"),
        (lambda m: adversarial_dropout(m, sp.cross_entropy, ball=sp.Flips(0.03))(X, Y), "use at least 0.063"),
    ],
)
def test_mistakes_are_explained(build: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(Text())
