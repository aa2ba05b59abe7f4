"""The loop against the same training written out by hand."""

import math
from pathlib import Path

import pytest
import torch
from torch import nn

import sparring as sp
from sparring.lab.errors import Diverged
from sparring.lab.registry import task
from sparring.lab.runs.folder import read_metrics
from sparring.lab.runs.run import execute, prepare
from sparring.lab.task import DEFAULTS, Data, Method, Setting, Split, Task
from sparring.lab.training.train import Session, keep_best, train
from sparring.lab.training.updates import make_optimiser, make_schedule

X = torch.linspace(-1, 1, 48).reshape(12, 4)
Y = torch.arange(12) % 3


def toy(objective, **settings: object) -> Session:
    """A session on twelve examples, outside the registry."""
    from accelerate import Accelerator

    values = {**DEFAULTS, "batch": 4, "epochs": 2, "optimiser": "sgd", "lr": 0.1, "momentum": 0.0, **settings}
    setting = Setting("toy", "m", "tiny", 0, None, values)
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    entry = Task(
        "toy", "", "loss", "lower", {"tiny": {}}, (Method("plain", "", None),), lambda s: None, lambda s, d: None,
        lambda m, split, s: {"loss": float(sp.cross_entropy(m(split.inputs), split.targets).mean())},
    )  # fmt: skip
    data = Data(Split(X, Y), Split(X, Y))
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=setting["accumulate"])
    return Session(entry, setting, data, model, objective(model), accelerator)


def by_hand(session: Session, update) -> nn.Linear:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    for epoch in range(session.setting["epochs"]):
        session.progress.epoch = epoch
        for index in list(session.batches()):
            update(model, X[index], Y[index])
    session.progress.epoch = 0
    return model


def descend(model: nn.Module, rate: float = 0.1) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= rate * parameter.grad
            parameter.grad = None


def test_one_update_per_step() -> None:
    session = toy(lambda model: sp.Objective(model, sp.cross_entropy))

    def update(model, x, y):
        nn.functional.cross_entropy(model(x), y).backward()
        descend(model)

    expected = by_hand(session, update)
    train(session)
    assert torch.allclose(session.model.weight, expected.weight, atol=1e-7)


class Twice:
    """Two losses a step, the second at the weights the first left behind if asked for."""

    diagnostics: dict[str, float] = {}  # noqa: RUF012

    def __init__(self, model: nn.Module, each: bool) -> None:
        self.model, self.update_each_loss = model, each

    def steps(self, inputs, targets):
        for factor in (1.0, 0.5):
            yield factor * nn.functional.cross_entropy(self.model(inputs), targets)


@pytest.mark.parametrize("each", [True, False])
def test_several_losses_make_one_update_or_one_each(each: bool) -> None:
    session = toy(lambda model: Twice(model, each))

    def update(model, x, y):
        for factor in (1.0, 0.5):
            (factor * nn.functional.cross_entropy(model(x), y)).backward()
            if each:
                descend(model)
        if not each:
            descend(model)

    expected = by_hand(session, update)
    train(session)
    assert torch.allclose(session.model.weight, expected.weight, atol=1e-7)


def test_accumulation_is_the_mean_over_batches() -> None:
    session = toy(lambda model: sp.Objective(model, sp.cross_entropy), accumulate=3)
    expected = nn.Linear(4, 3)
    torch.manual_seed(0)
    expected = nn.Linear(4, 3)
    for _ in range(2):
        nn.functional.cross_entropy(expected(X), Y).backward()  # three batches of four are all twelve examples
        descend(expected)
    train(session)
    assert torch.allclose(session.model.weight, expected.weight, atol=1e-6)


@pytest.mark.parametrize("each", [False, True])
def test_the_last_update_of_an_epoch_is_of_the_batches_that_are_left(each: bool) -> None:
    """Three batches an epoch, two to an update: the mean over two, then the third alone; the rate falls over all of them."""

    class Each:
        update_each_loss, diagnostics = each, {}

        def __init__(self, model: nn.Module) -> None:
            self.model = model

        def steps(self, inputs, targets):
            yield nn.functional.cross_entropy(self.model(inputs), targets)

    session = toy(Each, accumulate=2, schedule="linear")
    rates = [0.1, 0.1, 0.075, 0.05, 0.05, 0.025] if each else [0.1, 0.075, 0.05, 0.025]  # the rate goes by groups
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    for epoch in range(2):
        plan = session.plan(epoch)
        for group in plan if each else [torch.cat(plan[:2]), plan[2]]:
            nn.functional.cross_entropy(model(X[group]), Y[group]).backward()
            descend(model, rates.pop(0))
    train(session)
    assert torch.allclose(session.model.weight, model.weight, atol=1e-6)


def test_clipping_bounds_the_whole_gradient() -> None:
    session = toy(
        lambda model: sp.Objective(model, lambda o, t: 1e4 * sp.cross_entropy(o, t)), clip=0.5, epochs=1, batch=12
    )
    before = [p.detach().clone() for p in session.model.parameters()]
    train(session)
    moved = torch.cat([(b - a.detach()).flatten() for a, b in zip(session.model.parameters(), before, strict=True)])
    assert moved.norm() == pytest.approx(0.1 * 0.5, rel=1e-4)


def test_a_diverging_run_says_so() -> None:
    session = toy(lambda model: sp.Objective(model, lambda o, t: sp.cross_entropy(o, t) * float("inf")))
    with pytest.raises(Diverged, match="the loss is inf at epoch 1, batch 1"):
        train(session)


def test_early_stopping_waits_for_its_patience() -> None:
    session = toy(lambda model: sp.Objective(model, lambda o, t: -sp.cross_entropy(o, t)), patience=2, epochs=50)
    train(session)
    assert session.progress.best_epoch == 1
    assert session.progress.epoch == 3


def test_an_undefined_score_never_stays_the_best() -> None:
    session = toy(lambda model: sp.Objective(model, sp.cross_entropy))
    for epoch, value in enumerate((float("nan"), 2.0, float("nan"), 1.0, 3.0), 1):
        session.progress.epoch = epoch
        keep_best(session, {"loss": value})
    assert (session.progress.best, session.progress.best_epoch) == (1.0, 4)


def test_bf16_runs_the_model_in_bf16_and_keeps_the_weights_in_float32() -> None:
    seen = []
    session = toy(lambda model: sp.Objective(model, sp.cross_entropy), precision="bf16", epochs=1)
    session.model.register_forward_hook(lambda module, inputs, output: seen.append((module.training, output.dtype)))
    train(session)
    assert {dtype for training, dtype in seen if training} == {torch.bfloat16}
    assert session.model.weight.dtype == torch.float32


def test_free_at_updates_after_each_loss(tmp_path: Path) -> None:
    session = toy(
        lambda model: sp.recipes.free_at(model, sp.cross_entropy, ball=sp.L2(0.1), steps=3), epochs=1, batch=12
    )
    steps = []
    session.update.optimiser.register_step_post_hook(lambda *_: steps.append(1))
    train(session)
    assert len(steps) == 3
    assert session.update.schedule.last_epoch == 1


def test_passes_and_diagnostics_are_recorded(tmp_path: Path) -> None:
    execute(task("sequential-digits").setting("vat", overrides={"epochs": 1, "hidden": 24}), tmp_path)
    (line,) = read_metrics(tmp_path)
    assert line["passes_per_step"] == 5  # clean, one look at the gradient, perturbed; two backward
    assert line["diagnostics"]["vat/norm"] == pytest.approx(0.5, rel=1e-3)
    assert len(line["losses"]) == 20


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"schedule": "constant"}, [1, 1, 1, 1]),
        ({"schedule": "linear", "lr_end": 0.5}, [1, 0.875, 0.75, 0.625]),
        ({"schedule": "linear", "decay_from": 0.5}, [1, 1, 1, 0.5]),
        ({"schedule": "cosine"}, [1, 0.853553, 0.5, 0.146447]),
        ({"schedule": "exponential", "lr_decay": 0.5}, [1, 0.5, 0.25, 0.125]),
        ({"schedule": "linear", "warmup": 0.5}, [0.5, 1, 1, 0.5]),
        # Vaswani et al. 2017, eq. 3, over its largest value: min(sqrt(w / t), t / w) in update t = 1, 2, ... of w that warm up.
        ({"schedule": "inverse_sqrt", "warmup": 0.5}, [1 / 2, 1, (2 / 3) ** 0.5, (2 / 4) ** 0.5]),
        ({"schedule": "inverse_sqrt", "warmup": 0.75}, [1 / 3, 2 / 3, 1, (3 / 4) ** 0.5]),
        ({"schedule": "inverse_sqrt", "warmup": 0.25}, [1, 2**-0.5, 3**-0.5, 4**-0.5]),
        ({"schedule": "inverse_sqrt"}, [1, 2**-0.5, 3**-0.5, 4**-0.5]),
        ({"schedule": "inverse_sqrt", "warmup": 0.5, "decay_from": 0.75}, [1 / 2, 1, (2 / 3) ** 0.5, (2 / 4) ** 0.5]),
        # The ramp-down of temporal ensembling: exp(-(e / 2)^2 / L) in epoch e of the last L.
        ({"schedule": "gaussian", "epochs": 4}, [1, math.exp(-1 / 16), math.exp(-4 / 16), math.exp(-9 / 16)]),
        ({"schedule": "gaussian", "epochs": 4, "decay_from": 0.5}, [1, 1, 1, math.exp(-1 / 8)]),
        ({"schedule": "gaussian", "epochs": 2}, [1, 1, math.exp(-1 / 8), math.exp(-1 / 8)]),
    ],
)
def test_schedules(settings: dict[str, object], expected: list[float]) -> None:
    setting = Setting("t", "m", "tiny", 0, None, {**DEFAULTS, "lr": 1.0, "optimiser": "sgd", **settings})
    optimiser = make_optimiser(nn.Linear(1, 1), setting)
    schedule = make_schedule(optimiser, setting, 4)
    seen = []
    for _ in range(4):
        seen.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        schedule.step()
    assert seen == pytest.approx(expected, abs=1e-6)


def test_evaluation_leaves_noise_and_mode_alone() -> None:
    from sparring.lab.training.train import score

    session = prepare(task("sequential-digits").setting("variational_dropout", overrides={"hidden": 24}))
    session.model.train()
    state = torch.get_rng_state()
    score(session, "test")
    assert torch.equal(torch.get_rng_state(), state)
    assert session.model.training
