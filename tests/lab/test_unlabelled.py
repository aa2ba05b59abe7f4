"""Unlabelled data in the loop: an endless order that every method shares and that a resumed run finds again."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some
from torch import nn

import sparring as sp
from sparring.lab.errors import Interrupted
from sparring.lab.registry import task
from sparring.lab.runs import checkpoint
from sparring.lab.runs.run import execute, prepare
from sparring.lab.training.stream import Stream
from sparring.lab.training.train import Session, train

SHORT = {"epochs": 2, "epoch_batches": 6, "batch": 20, "unlabelled_batch": 30}


@given(some.integers(1, 40), some.integers(0, 200), some.integers(1, 90), some.integers(0, 9))
def test_a_stream_is_one_order_after_the_other(count: int, start: int, size: int, seed: int) -> None:
    passes = range((start + size) // count + 1)
    whole = [torch.randperm(count, generator=torch.Generator().manual_seed(seed + k)) for k in passes]
    assert torch.equal(Stream(count, seed).draw(start, size), torch.cat(whole)[start : start + size])


def seen(method: str, seed: int = 0) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Labelled and unlabelled inputs of every step of a short run."""
    session = prepare(task("few-labels-digits").setting(method, seed=seed, overrides=SHORT))
    assert session.objective is not None
    found, steps = [], session.objective.steps

    def spy(inputs, targets, unlabelled):
        found.append((inputs.clone(), unlabelled.clone()))
        return steps(inputs, targets, unlabelled=unlabelled)

    session.objective.steps = spy  # type: ignore[method-assign]
    train(session)
    return found


def test_every_method_sees_the_same_examples() -> None:
    plain, vat, other = seen("plain"), seen("vat"), seen("plain", seed=1)
    assert [(len(a), len(b)) for a, b in plain] == [(20, 30)] * 12
    assert all(torch.equal(a, c) and torch.equal(b, d) for (a, b), (c, d) in zip(plain, vat, strict=True))
    assert not any(torch.equal(b, d) for (_, b), (_, d) in zip(plain, other, strict=True))


def test_a_run_stopped_between_two_batches_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    setting = task("few-labels-digits").setting("vat", overrides=SHORT)
    whole = execute(setting, tmp_path / "whole")

    def stop(session: Session) -> None:
        if session.progress.step == 9:
            import os
            import signal

            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted):
        execute(setting, tmp_path / "cut", watch=stop)
    assert execute(setting, tmp_path / "cut")["test"] == whole["test"]
    first, second = (checkpoint.load(tmp_path / name) for name in ("whole", "cut"))
    assert all(torch.equal(first["best"][name], second["best"][name]) for name in first["best"])


def test_labels_are_balanced_drawn_by_seed_and_never_held_out() -> None:
    entry = task("few-labels-digits")
    first, second = (entry.load(entry.setting("plain", seed=seed)) for seed in (0, 1))
    assert torch.bincount(first.train.targets).tolist() == [5] * 10
    assert not torch.equal(first.train.inputs, second.train.inputs)
    assert torch.equal(first.test.inputs, second.test.inputs)
    held = {tuple(row.tolist()) for row in first.test.inputs}
    assert not any(tuple(row.tolist()) in held for row in first.unlabelled.inputs)
    with pytest.raises(ValueError, match="labels=15 does not fit"):
        entry.load(entry.setting("plain", overrides={"labels": 15}))


def test_the_loss_is_that_of_the_labelled_plus_the_penalty_of_the_unlabelled() -> None:
    session = prepare(task("few-labels-digits").setting("adversarial_dropout", overrides={**SHORT, "weight": 500.0}))
    model, data = session.model.eval(), session.data
    inputs, targets = data.train.batch(slice(0, 20))
    more = data.unlabelled.inputs[:30]
    recipe = sp.recipes.adversarial_dropout(
        model, sp.cross_entropy, at=sp.Mask("hidden.**", keep=1.0), ball=sp.Flips(0.05), weight=500.0, detach_clean=True
    )
    (loss,) = session.objective.steps(inputs, targets, unlabelled=more)
    parts = recipe(inputs, targets).item(), recipe(more).item()
    assert loss.item() == pytest.approx(sum(parts), rel=0.02)  # the first flips are drawn
    assert min(parts) > 0.05 * sum(parts)
    plain = prepare(task("few-labels-digits").setting("plain", overrides=SHORT))
    (loss,) = plain.objective.steps(inputs, targets, unlabelled=more)
    assert loss.item() == pytest.approx(nn.functional.cross_entropy(plain.model(inputs), targets).item(), rel=1e-5)


def test_mnist_has_a_thousand_to_validate(data_folder: Path) -> None:
    entry = task("few-labels-mnist")
    data = entry.load(entry.setting("plain", "small", data=data_folder, overrides={"labels": 1000}))
    assert [len(part) for part in (data.train, data.validation, data.test, data.unlabelled)] == [
        1000,
        1000,
        10_000,
        59_000,
    ]
