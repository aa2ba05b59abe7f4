"""What users do wrong, and what they expect around an objective."""

import copy
import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sparring as sp
from sparring import recipes
from sparring.passes.step import Step


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 3))


X, Y = torch.linspace(-1, 1, 20).view(5, 4), torch.tensor([0, 1, 2, 0, 1])


def test_unmatched_names_list_near_ones() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.encoder = nn.Embedding(3, 4), nn.Linear(4, 4)

    with pytest.raises(ValueError, match=r"'embeding' matches no module in Named; near names: embedding"):
        recipes.vat(Named(), sp.cross_entropy, "embeding")
    with pytest.raises(ValueError, match="matches no dropout layer"):
        sp.Objective(Named(), sp.cross_entropy, sp.Term(sp.Mask("encoder"), sp.Bernoulli(0.5)))
    with pytest.raises(ValueError, match="the model has no dropout layer"):
        sp.Objective(Named(), sp.cross_entropy, sp.Term(sp.Mask("drop"), sp.Bernoulli(0.5)))


def test_players_must_fit_the_site() -> None:
    with pytest.raises(ValueError, match=r"PGD plays at additive sites.*sp.Output\("):
        sp.Term(sp.Mask("2"), sp.PGD(sp.L2(1.0)), sp.kl)
    with pytest.raises(ValueError, match=r"Bernoulli plays at mask sites.*sp.Mask\("):
        sp.Term(sp.Output("0"), sp.Bernoulli(0.5), sp.kl)
    with pytest.raises(ValueError, match="a site needs a player"):
        sp.Term(sp.Output("0"), None, sp.kl)
    with pytest.raises(ValueError, match="share_noise=False"):
        sp.Term(None, None, sp.kl)


def test_a_divergence_has_no_slope_at_the_clean_point() -> None:
    with pytest.raises(ValueError, match="no slope"):
        sp.Term(sp.Output("0"), sp.PGD(sp.L2(1.0), start=0), sp.kl)
    with pytest.raises(ValueError, match="no slope"):
        sp.Term(sp.Output("0"), sp.FastGradient(sp.L2(1.0)), sp.js)
    sp.Term(sp.Output("0"), sp.PGD(sp.L2(1.0), start=0), sp.kl, share_noise=False)  # other noise gives it one


def test_bad_input_is_named() -> None:
    objective = recipes.vat(model(), sp.cross_entropy, "0")
    with pytest.raises(ValueError, match="inputs contain NaN"):
        objective(X.masked_fill(X[0, 0] == X, float("nan")), Y)
    with pytest.raises(ValueError, match="batch is empty"):
        objective(X[:0], Y[:0])
    with pytest.raises(ValueError, match="one number for the batch"):
        recipes.vat(model(), nn.functional.cross_entropy, "0")(X, Y)
    with pytest.raises(ValueError, match="targets are missing"):
        recipes.adversarial_training(model(), sp.cross_entropy, "0")(X)
    with pytest.raises(ValueError, match="token ids cannot be perturbed"):
        recipes.vat(nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(8, 3)), sp.cross_entropy)(
            torch.ones(5, 2).long(), Y
        )
    with pytest.raises(TypeError, match="an objective takes terms, got L2"):
        sp.Objective(model(), sp.cross_entropy, sp.L2(1.0))
    with pytest.raises(ValueError, match="finite radius"):
        recipes.vat(model(), sp.cross_entropy, ball=sp.L2(-1.0))


def test_outputs_of_an_unknown_kind_ask_for_a_function() -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> list[Tensor]:
            return [x, x]

    with pytest.raises(TypeError, match="pass outputs="):
        recipes.vat(Odd(), sp.cross_entropy)(X, Y)
    objective = recipes.vat(Odd(), sp.cross_entropy, outputs=lambda pair: pair[0] + 0)
    assert torch.isfinite(objective(X, Y))


def test_unknown_time_major_layers_need_their_batch_dimension() -> None:
    class Turned(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.cumsum(0)

    class TimeMajor(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = Turned(), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:  # (T, B, 4)
            return self.head(self.rnn(x)[-1])

    x = torch.randn(7, 5, 4)
    with pytest.raises(ValueError, match="batch_dim=1"):
        recipes.vat(TimeMajor(), sp.cross_entropy, "rnn")(x, Y)
    objective = recipes.vat(TimeMajor(), sp.cross_entropy, sp.Output("rnn", batch_dim=1), ball=sp.L2(2.0))
    objective(x, Y).backward()
    assert objective.diagnostics["vat/norm"] == pytest.approx(2.0, rel=1e-4)


def test_inference_mode_is_refused_and_no_grad_works() -> None:
    objective = recipes.vat(model().eval(), sp.cross_entropy, "0")
    with torch.inference_mode(), pytest.raises(RuntimeError, match="no_grad"):
        objective(X, Y)
    with torch.no_grad():
        loss = objective(X, Y)
    assert not loss.requires_grad
    torch.manual_seed(0)
    with torch.no_grad():
        quiet = objective(X, Y)
    torch.manual_seed(0)
    torch.testing.assert_close(objective(X, Y), quiet)


def test_terms_share_one_clean_pass() -> None:
    terms = [sp.Term(sp.Output(at), sp.Noise(sp.L2(1.0)), sp.kl) for at in ("0", "1", "3")]
    objective = sp.Objective(model(), sp.cross_entropy, *terms)
    objective(X, Y)
    assert objective.diagnostics["forward_passes"] == 4
    twice = sp.Objective(model(), sp.cross_entropy, terms[0], terms[0])
    twice(X, Y)
    assert {"noise/penalty", "noise.2/penalty"} <= set(twice.diagnostics)


def test_the_sum_of_terms_is_the_sum_of_their_charges() -> None:
    net = model().eval()
    make = lambda at, weight: sp.Term(sp.Output(at), sp.PGD(sp.L2(0.5), start="uniform"), sp.kl, weight)
    objective = sp.Objective(net, sp.cross_entropy, make("0", 0.5), make("1", 2.0))
    loss = objective(X, Y)
    d = objective.diagnostics
    expected = d["clean_loss"] + 0.5 * d["pgd/penalty"] + 2.0 * d["pgd.2/penalty"]
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-5)


def test_masks_by_name_must_fit() -> None:
    net = nn.Sequential(nn.Linear(4, 3))
    objective = recipes.vat(net, sp.cross_entropy, "0")
    x, y = torch.randn(2, 5, 4), torch.zeros(2, 5, dtype=torch.long)
    with pytest.raises(ValueError, match="does not fit"):
        objective(x, y, {"0": torch.ones(2, 9, dtype=torch.bool)})
    assert torch.isfinite(objective(x, y, torch.ones(2, 5, dtype=torch.bool)))


def test_all_padding_rows_and_single_steps_are_fine() -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    valid = torch.tensor([[True, True], [False, False]])
    for recipe in (recipes.vat, recipes.salt, recipes.adversarial_training, recipes.free_lb):
        objective = recipe(net, sp.cross_entropy, "0")
        loss = objective(torch.randn(2, 2, 4).double(), torch.zeros(2, 2, dtype=torch.long), valid)
        gradients = torch.autograd.grad(loss, list(net.parameters()))
        assert all(bool(torch.isfinite(g).all()) for g in gradients)
        one = recipe(net, sp.cross_entropy, "0")(torch.randn(1, 1, 4).double(), torch.zeros(1, 1, dtype=torch.long))
        assert torch.isfinite(one)


def test_noise_check_runs_every_nth_step() -> None:
    objective = sp.Objective(
        model(), sp.cross_entropy, sp.Term(sp.Output("0"), sp.PGD(sp.L2(1.0)), sp.kl, name="t"), measure_noise_every=3
    )
    seen = []
    for _ in range(6):
        objective(X, Y)
        seen.append("t/noise_penalty" in objective.diagnostics)
    assert seen == [True, False, False, True, False, False]


def test_the_state_dict_remembers_the_step() -> None:
    objective = recipes.vat(model(), sp.cross_entropy, "0")
    for _ in range(3):
        objective(X, Y)
    other = recipes.vat(model(), sp.cross_entropy, "0")
    other.load_state_dict(objective.state_dict())
    assert other.number == 3


def test_predict_means_entropies_and_modes() -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
    net.train()
    net[0].eval()
    before = [m.training for m in net.modules()]
    statistics = net[1].running_mean.clone()
    found = sp.predict(net, X, samples=50, keep_samples=True)
    assert [m.training for m in net.modules()] == before
    assert torch.equal(net[1].running_mean, statistics)
    torch.testing.assert_close(found.probabilities, found.samples.mean(0))
    torch.testing.assert_close(found.entropy, torch.distributions.Categorical(found.probabilities).entropy())
    inner = torch.distributions.Categorical(found.samples).entropy().mean(0)
    torch.testing.assert_close(found.mutual_information, (found.entropy - inner).clamp_min(0))
    assert float(found.mutual_information.max()) > 0
    net[2].p = 0.0
    sure = sp.predict(net, X, samples=3)
    assert float(sure.mutual_information.max()) < 1e-6
    with pytest.raises(ValueError, match="at least one pass"):
        sp.predict(net, X, samples=0)


def test_predict_restores_modes_after_an_error() -> None:
    net = model().train()
    with pytest.raises(RuntimeError):
        sp.predict(net, torch.randn(2, 99))
    assert all(m.training for m in net.modules())


def test_a_used_objective_can_be_copied_and_keeps_nothing_of_its_step(steps: list[Step]) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    objective = sp.recipes.vat(model, sp.cross_entropy, "0", ball=sp.L2(1.0))
    x, y = torch.randn(6, 4), torch.randint(3, (6,))
    objective(x, y).backward()
    twin = copy.deepcopy(objective)
    torch.manual_seed(1)
    mine = objective(x, y)
    torch.manual_seed(1)
    assert torch.equal(mine, twin(x, y))
    assert twin.diagnostics == objective.diagnostics
    assert twin._ground.layout.matches[twin.terms[0].at]["0"] is twin.model[0]
    last = weakref.ref(steps[-1])
    del mine
    steps.clear()
    gc.collect()
    assert last() is None, "an objective must not keep activations alive between steps"


def test_modules_that_come_and_go_between_steps_are_noticed() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    objective = sp.recipes.vat(model, sp.cross_entropy, "0", ball=sp.L2(1.0))
    x, y = torch.randn(6, 4), torch.randint(3, (6,))
    for _ in range(2):
        objective(x, y).backward()
    replaced, model[0] = model[0], nn.Linear(4, 8)
    for parameter in replaced.parameters():
        parameter.grad = None
    objective(x, y).backward()
    assert objective.diagnostics[f"{objective.terms[0].name}/norm"] > 0
    assert model[0].weight.grad is not None
    assert replaced.weight.grad is None
    model[1] = nn.Sequential(nn.BatchNorm1d(8), nn.Tanh())
    before = model[1][0].num_batches_tracked.clone()
    objective(x, y).backward()
    assert int(model[1][0].num_batches_tracked - before) == 1, "only the clean pass moves the new layer's averages"


def test_a_mask_over_words_is_not_taken_for_one_over_units() -> None:
    """(B, T) and (B, units) of the same shape: only a mask given by name covers units."""
    net = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(16, 4), nn.Linear(4, 3))
    words, targets = torch.randint(9, (5, 4)), torch.tensor([0, 1, 2, 0, 1])
    valid = torch.tensor([[True, True, False, False]] * 5)

    def placed(site: Any, valid: Any) -> Tensor:
        term = sp.Term(at=site, by=sp.FastGradient(sp.L2(1.0)))
        objective = sp.Objective(net, sp.cross_entropy, term)
        step = objective.begin(words, targets, valid, objective.terms)
        step.begin()
        term.play(step)
        assert step.last is not None
        return step.last.slots[site][0].placed

    units = placed(sp.Output("2"), valid)
    assert bool((units != 0).all())
    assert bool((placed(sp.Output("0"), valid)[:, 2:] == 0).all())
    named = placed(sp.Output("2"), {"2": valid})
    assert bool((named[:, 2:] == 0).all())
    assert bool((named[:, :2] != 0).all())


def test_a_mask_over_a_signal_covers_the_models_own_input() -> None:
    signal = nn.Sequential(nn.Linear(4, 3))
    term = sp.Term(at=sp.Input(), by=sp.FastGradient(sp.L2(1.0)))
    objective = sp.Objective(signal, sp.cross_entropy, term)
    valid = torch.tensor([[True, True, True, False]] * 5)
    step = objective.begin(X, Y, valid, objective.terms)
    step.begin()
    term.play(step)
    assert step.last is not None
    perturbation = step.last.slots[term.at][0].placed
    assert bool((perturbation[:, 3] == 0).all())
    assert bool((perturbation[:, :3] != 0).all())


def test_a_mask_over_words_leaves_the_units_of_a_dropout_free() -> None:
    net = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(16, 4), nn.Dropout(0.5), nn.Linear(4, 3))
    objective = sp.Objective(net, sp.cross_entropy, sp.Term(at=sp.Mask("3"), by=sp.Bernoulli(0.5), penalty=sp.kl))
    valid = torch.tensor([[True, True, False, False]] * 5)
    step = objective.begin(torch.randint(9, (5, 4)), Y, valid, objective.terms)
    step.begin()
    assert step.slots(objective.terms[0].sites[0])[0].valid is None


class Cut(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).detach()


@pytest.mark.parametrize("terms", [(), (sp.Term(sp.Input(), sp.Noise(sp.L2(0.5)), sp.kl),)], ids=["plain", "noise"])
def test_a_loss_without_any_parameter_is_refused(terms: tuple[sp.Term, ...]) -> None:
    x, y = torch.randn(3, 4), torch.arange(3)
    objective = sp.Objective(Cut(), sp.cross_entropy, *terms)
    with pytest.raises(RuntimeError, match="depends on no parameter of the model"):
        objective(x, y)
    with torch.no_grad():
        objective(x, y)  # nobody asks for gradients
    objective.requires_grad_(False)
    objective(x, y)  # nor here


@pytest.mark.parametrize("reduction", ["examples", "tokens"])
def test_items_make_uneven_batches_one(reduction: Any) -> None:
    """Accumulated parts, each divided by the items of all of them, are the loss and the gradient of the whole batch."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    x, y = torch.randn(6, 5, 4, dtype=torch.float64), torch.randint(3, (6, 5))
    y[0, 2:] = y[4, 1:] = -100
    objective = recipes.adversarial_training(net, sp.cross_entropy, ball=sp.L2(0.5), reduction=reduction)
    items = int((y != -100).sum()) if reduction == "tokens" else 6
    assert objective.counted is None
    whole = objective(x, y)
    assert objective.counted == items
    parts = [objective(x[rows], y[rows], items=items) for rows in (slice(0, 1), slice(1, 6))]
    assert objective.counted == items - (
        2 if reduction == "tokens" else 1
    )  # of the last part, whatever it is divided by
    torch.testing.assert_close(sum(parts), whole)
    parameters = list(net.parameters())
    torch.testing.assert_close(torch.autograd.grad(sum(parts), parameters), torch.autograd.grad(whole, parameters))
    flat, labels = x[:, 0], y[:, 0]
    torch.testing.assert_close(
        objective(flat[:2], labels[:2], items=6) + objective(flat[2:], labels[2:], items=6), objective(flat, labels)
    )


def test_items_count_once_what_a_whole_batch_is_charged_once() -> None:
    """A charge that is one number for the batch (the KL of learned rates) is not added again with every accumulated part."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), sp.nn.ConcreteDropout(8), nn.Linear(8, 3)).double().eval()
    kl = sp.terms.DropoutKL(prior_scale=1.0, dataset_size=5)
    objective = sp.Objective(net, sp.cross_entropy, kl)
    x, y = torch.randn(6, 4, dtype=torch.float64), torch.randint(3, (6,))
    whole = objective(x, y)
    assert abs(objective.diagnostics["dropout_kl/penalty"]) > 0.1
    torch.testing.assert_close(objective(x[:2], y[:2], items=6) + objective(x[2:], y[2:], items=6), whole)
    alone = objective(x)  # nothing but that one number
    torch.testing.assert_close(objective(x[:2], items=6) + objective(x[2:], items=6), alone)


class Beside(sp.PGD):
    """Starts where no random number has a say."""

    def first_move(self, slot: sp.sites.Slot) -> torch.Tensor:
        return torch.full_like(slot.value, 0.1)


@pytest.mark.parametrize("separate", [True, False])
def test_items_leave_unlabelled_examples_their_own_mean(separate: bool) -> None:
    """Three unlabelled rows for each labelled one: accumulated parts are the whole batch, not three times its unlabelled charge."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    term = sp.Term(at=sp.Input(), by=Beside(sp.L2(0.5)), penalty=sp.squared_error, detach_clean=True)
    objective = sp.Objective(net, sp.cross_entropy, term, separate=separate)
    x, y, more = torch.randn(6, 4).double(), torch.randint(3, (6,)), torch.randn(18, 4).double()
    whole = objective(x, y, unlabelled=more)
    parts = [objective(x[a:b], y[a:b], unlabelled=more[3 * a : 3 * b], items=6) for a, b in [(0, 2), (2, 6)]]
    torch.testing.assert_close(sum(parts), whole)


@pytest.mark.parametrize("items", [0, -3, float("nan")])
def test_items_are_a_number_of_examples(items: float) -> None:
    objective = sp.Objective(nn.Linear(4, 3), sp.cross_entropy)
    with pytest.raises(ValueError, match="more than 0"):
        objective(torch.randn(2, 4), torch.zeros(2, dtype=torch.long), items=items)


@pytest.mark.parametrize("name", ["vat", "smart", "salt", "free_lb", "free_at", "r_drop"])
def test_a_batch_on_another_device_is_one_sentence(name: str) -> None:
    """`meta` is a device like any other here: it refuses to mix."""
    objective = getattr(recipes, name)(model(), sp.cross_entropy, **({} if name == "r_drop" else {"at": "0"}))
    with pytest.raises(ValueError, match=r"targets are on meta and the objective's model on cpu: move them"):
        list(objective.steps(X, Y.to("meta")))
    objective.to("meta")
    with pytest.raises(
        ValueError,
        match=r"batch is on cpu and the objective's model on meta: move one of them, such as objective\.to\(\"cpu",
    ):
        list(objective.steps(X, Y))


def test_other_mistakes_are_not_blamed_on_devices() -> None:
    """Some models take lengths on the CPU, wherever they are themselves."""

    class Narrow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 3)

        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
            return self.fc(x[:, :3])

    objective = sp.Objective(Narrow(), sp.cross_entropy)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        objective((X, torch.ones(5, device="meta")), Y)
