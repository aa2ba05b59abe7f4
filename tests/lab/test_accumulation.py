"""Batches of unequal size that make one update together make the update of one batch of all their examples."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import Tensor, nn

import sparring as sp
from ranks import free_port, on_ranks
from sparring.lab.data.batches import epoch
from sparring.lab.registry import task
from sparring.lab.runs.checkpoint import load
from sparring.lab.runs.run import execute
from sparring.lab.task import DEFAULTS, Data, Method, Setting, Split, Task
from sparring.lab.training.items import Items
from sparring.lab.training.train import Session, train

LENGTHS = torch.tensor([1, 2, 2, 3, 3, 5, 6, 6])
Make = Callable[[nn.Module, str], Any]


class Tagger(nn.Module):
    """A class for every word, from the word and what all words of its sentence have in common."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.hidden, self.head = nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x, there = self.words(input_ids), attention_mask[..., None].to(self.head.weight.dtype)
        common = (x * there).sum(1, keepdim=True) / there.sum(1, keepdim=True)
        return self.head(torch.tanh(self.hidden(x) + common))


def tagger() -> Tagger:
    torch.manual_seed(0)
    return Tagger().double()


def sentences() -> Split:
    generator = torch.Generator().manual_seed(1)
    there = torch.arange(6) < LENGTHS[:, None]
    ids = torch.randint(1, 9, there.shape, generator=generator) * there
    targets = torch.randint(3, there.shape, generator=generator)
    targets[5, 1:4] = -100  # labels that count for nothing, beside those of the padding
    return Split({"input_ids": ids, "attention_mask": there.long()}, targets.masked_fill(~there, -100), None, LENGTHS)


def session_of(make: Make, reduction: str, **settings: object) -> Session:
    values = {**DEFAULTS, "tokens": 6, "epochs": 2, "accumulate": 3, "optimiser": "sgd", "lr": 0.5, "momentum": 0.0}
    setting = Setting("toy", "m", "tiny", 0, None, {**values, **settings})
    entry = Task(
        "toy", "", "loss", "lower", {"tiny": {}}, (Method("plain", "", None),), lambda s: None, lambda s, d: None,
        lambda model, split, s: {"loss": 0.0},
    )  # fmt: skip
    model, split = tagger(), sentences()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=setting["accumulate"])
    return Session(entry, setting, Data(split, split), model, make(model, reduction), accelerator)


def at_once(plans: Sequence[Sequence[Tensor]], size: int, make: Make, reduction: str) -> Tagger:
    """Training with one batch for every group of `size` batches."""
    model, data = tagger(), sentences()
    objective = make(model, reduction)
    for plan in plans:
        for start in range(0, len(plan), size):
            for loss in objective.steps(*data.batch(torch.cat(list(plan[start : start + size])))):
                loss.backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.5 * parameter.grad
                    parameter.grad = None
    return model


def same(found: dict[str, Tensor], wanted: nn.Module) -> None:
    for name, value in wanted.state_dict().items():
        torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-10, msg=name)
        assert not torch.allclose(value, tagger().state_dict()[name], atol=1e-3), "nothing was trained"


def plain(model: nn.Module, reduction: str) -> sp.Objective:
    return sp.Objective(model, sp.cross_entropy, reduction=reduction)  # type: ignore[arg-type]


def vat(model: nn.Module, reduction: str) -> sp.Objective:
    return sp.recipes.vat(model, sp.cross_entropy, at="words", ball=sp.L2(1.0), reduction=reduction)


def free_lb(update: str) -> Make:
    def make(model: nn.Module, reduction: str) -> sp.Objective:
        ascent = {"ball": sp.L2(1.0), "steps": 3, "step_size": 0.4, "start": 0.0, "update": update}
        return sp.recipes.free_lb(model, sp.cross_entropy, at="words", reduction=reduction, **ascent)

    return make


METHODS = {
    "plain": plain,
    "vat": vat,
    **{f"free_lb {update}": free_lb(update) for update in ("normalised", "raw", "adam")},
}


@pytest.fixture(autouse=True)
def same_noise_for_every_example(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random starts that do not depend on which examples share a batch."""

    def noise(like: Tensor) -> Tensor:
        row = torch.randn(like.shape[1:], dtype=like.dtype, generator=torch.Generator().manual_seed(2))
        return row.expand(like.shape).clone()

    monkeypatch.setattr(torch, "randn_like", noise)


@pytest.mark.parametrize("reduction", ["examples", "tokens"])
@pytest.mark.parametrize("method", list(METHODS))
def test_unequal_batches_update_as_one_batch_of_them_all(method: str, reduction: str) -> None:
    """Five batches to three an update: the last update of an epoch has two."""
    make = METHODS[method]
    session = session_of(make, reduction)
    sizes = [len(index) for index in session.plan(0)]
    assert (len(sizes), sorted(sizes)) == (5, [1, 1, 1, 2, 3])
    wanted = at_once([session.plan(0), session.plan(1)], 3, make, reduction)
    train(session)
    same(session.model.state_dict(), wanted)


class Foreign:
    """A method that is no objective and does not say what it counts: a mean over examples."""

    update_each_loss, diagnostics = False, {}

    def __init__(self, model: nn.Module, reduction: str) -> None:
        self.inner = plain(model, "examples")

    def steps(self, inputs: Any, targets: Any) -> Any:
        yield from self.inner.steps(inputs, targets)


def test_a_method_that_does_not_count_means_its_examples() -> None:
    session = session_of(Foreign, "examples")
    wanted = at_once([session.plan(0), session.plan(1)], 3, plain, "examples")
    train(session)
    same(session.model.state_dict(), wanted)


def test_an_update_without_anything_to_count_changes_nothing() -> None:
    session = session_of(plain, "tokens", epochs=1)
    session.data.train.targets.fill_(-100)
    before = {name: value.clone() for name, value in session.model.state_dict().items()}
    train(session)
    assert all(torch.equal(value, before[name]) for name, value in session.model.state_dict().items())


def test_without_accumulation_a_loss_stays_the_mean_it_is() -> None:
    items = Items(Accelerator(cpu=True), several=False)
    assert (items.add(7), items.taken()) == (1, None)


class Stop(Exception):
    pass


def test_a_run_stopped_amid_unequal_batches_ends_in_the_same_bits(tmp_path: Path) -> None:
    """What is counted since the last update is not saved, and need not be: a run goes on from an update."""
    changes = {"epochs": 1, "examples": 60, "tokens": 100, "accumulate": 3, "average": "never", "steps": 2}
    setting = task("multi30k").setting("free_lb", overrides=changes)
    sizes: list[int] = []

    def stop(session: Session) -> None:
        sizes.extend(len(index) for index in session.plan(0))
        if session.progress.step == 5:
            raise Stop

    execute(setting, tmp_path / "whole")
    with pytest.raises(Stop):
        execute(setting, tmp_path / "parts", checkpoint_every=0.0, watch=stop)
    execute(setting, tmp_path / "parts")
    assert len(set(sizes)) > 1
    whole, parts = (load(tmp_path / name)["best"] for name in ("whole", "parts"))
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def on_rank(rank: int, world: int, port: int) -> dict[str, dict[str, Tensor]]:
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in place.items()}
    found = {}
    for name in ("plain", "free_lb raw"):
        for reduction in ("examples", "tokens"):
            session = session_of(METHODS[name], reduction, accumulate=2)
            train(session)
            found[f"{name}/{reduction}"] = dict(session.model.state_dict())
    return found


@pytest.mark.skipif(not dist.is_gloo_available(), reason="this torch has no gloo backend")
def test_processes_with_unequal_shares_update_as_one(tmp_path: Path) -> None:
    """Each process has as many sentences of a batch, and another number of their words."""
    found = on_ranks(on_rank, 2, tmp_path, free_port())
    for one in found:
        for key, weights in one.items():
            name, reduction = key.split("/")
            plans = [epoch(len(LENGTHS), 0, number, LENGTHS, tokens=12, parts=2) for number in range(2)]
            assert [len(plan) for plan in plans] == [3, 3]
            same(weights, at_once(plans, 2, METHODS[name], reduction))
