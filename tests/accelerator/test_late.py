"""Refusals and warnings that need a bit from the device: at once in the first step, one step late afterwards, and never lost."""

import copy
import pickle
import warnings

import pytest
import torch
from torch import Tensor, nn

import sparring as sp
from accelerator.device import Device, counting


def _boxed() -> tuple[sp.Objective, Tensor, Tensor]:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).to("pretend")
    objective = sp.recipes.adversarial_training(model, sp.cross_entropy, at=sp.Input(), ball=sp.Linf(0.1, box=(0, 1)))
    return objective, torch.rand(5, 4, device="pretend"), torch.zeros(5, dtype=torch.long, device="pretend")


def test_the_first_step_refuses_at_once(pretend: Device) -> None:
    objective, x, y = _boxed()
    with pytest.raises(ValueError, match="outside box"):
        objective(x + 1, y)


@pytest.mark.parametrize("ask", ["the next step", "the diagnostics"])
def test_a_later_step_refuses_without_waiting(pretend: Device, ask: str) -> None:
    objective, x, y = _boxed()
    objective(x, y).backward()
    with counting() as count:
        objective(x + 1, y).backward()
    assert not count.waits
    with pytest.raises(ValueError, match="outside box"):
        objective(x, y) if ask == "the next step" else objective.diagnostics
    objective(x, y).backward()
    assert objective.diagnostics, "it is refused once"


def test_the_clean_steps_of_a_box_wait_for_nothing_and_refuse_nothing(pretend: Device) -> None:
    objective, x, y = _boxed()
    waiting = []
    for _ in range(4):
        with counting() as count:
            objective(x, y).backward()
        waiting.append(len(objective._questions.waiting))
    assert not count.waits
    assert waiting[2] == waiting[3] > 0, "what has arrived is answered, and does not pile up"
    assert objective.diagnostics


def test_on_a_device_without_events_the_diagnostics_answer(pretend: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(pretend, "Event")
    objective, x, y = _boxed()
    objective(x, y)
    objective(x + 1, y)
    objective(x, y)
    with pytest.raises(ValueError, match="outside box"):
        objective.diagnostics  # noqa: B018


def test_a_copy_of_an_objective_has_no_open_questions(pretend: Device) -> None:
    objective, x, y = _boxed()
    objective(x, y)
    objective(x, y)
    assert objective._questions.waiting
    assert not copy.deepcopy(objective._questions).waiting
    assert not pickle.loads(pickle.dumps(objective._questions)).waiting


def test_a_player_that_does_not_play_is_told_of_once(pretend: Device) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).to("pretend")
    with torch.no_grad():
        model[2].weight.zero_()
    x, y = torch.rand(5, 4, device="pretend"), torch.zeros(5, dtype=torch.long, device="pretend")
    objective = sp.recipes.vat(model, sp.cross_entropy, at="0", ball=sp.L2(1.0))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(2):  # the second step, number 1, is the first that looks
            with counting() as count:
                objective(x, y).backward()
        assert not count.waits
        assert not seen
        objective(x, y).backward()
        assert ["most examples were left unperturbed" in str(w.message) for w in seen] == [True]


def test_non_finite_gradients_leave_the_example_alone_and_are_counted(pretend: Device) -> None:
    class Cliff(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            far = x.detach()[:, :1] > 5
            if x.requires_grad:
                x.register_hook(lambda slope: torch.where(far, torch.nan, slope))
            return x

    model = nn.Sequential(nn.Linear(4, 8), Cliff(), nn.Tanh(), nn.Linear(8, 3)).to("pretend")
    x, y = torch.rand(5, 4, device="pretend"), torch.zeros(5, dtype=torch.long, device="pretend")
    with torch.no_grad():
        model[0].weight[0] = 1.0
    x[2] = 9.0
    objective = sp.recipes.adversarial_training(model, sp.cross_entropy, at=sp.Input(), ball=sp.L2(0.5))
    for _ in range(2):
        with counting() as count:
            loss = objective(x, y)
    assert not count.waits
    assert torch.isfinite(loss).item()
    assert next(v for k, v in objective.diagnostics.items() if k.endswith("unperturbed")) == 1


def test_statistics_whose_shapes_do_not_depend_on_data_are_the_same() -> None:
    from sparring.ensembles import counting as units

    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        bins = torch.randint(-3, 9, (4, 12), generator=generator)
        active = torch.rand(4, 12, generator=generator) < 0.7
        for batchwise in (False, True):
            totals = []
            for numbers, labels in (
                units.compact(bins, active, -3, 8, batchwise),
                units.ranked(bins, active, batchwise),
            ):
                taken = units.count_units(numbers, labels.shape[1], [6, 6], batchwise)
                first = labels.expand(len(taken.counts), -1).gather(1, units.priorities(taken.counts.sum(1), 2))
                totals.append((first, taken.hand_out(taken.counts, -1.0)))
            assert torch.equal(totals[0][1], totals[1][1])
            some = active.any(1) if not batchwise else active.any().view(1)
            assert torch.equal(totals[0][0][some], totals[1][0][some])


def test_words_find_the_same_neighbours(pretend: Device) -> None:
    embedding = nn.Embedding(11, 5, padding_idx=0)
    words = torch.tensor([3, 1, 7, 3])
    expected = sp.WordDirections(embedding, neighbours=3).nearest(words)
    directions = sp.WordDirections(embedding.to("pretend"), neighbours=3, refresh=2)
    there = words.to("pretend")
    assert torch.equal(directions.nearest(there).cpu(), expected)
    with torch.no_grad():
        embedding.weight.copy_(embedding.weight.flip(0))
    directions.step = 1
    assert torch.equal(directions.nearest(there).cpu(), expected), "not looked for again yet"
    directions.step = 2
    with counting() as count:
        again = directions.nearest(there)
    assert not count.waits
    fresh = sp.WordDirections(embedding.to("cpu"), neighbours=3).nearest(words)
    assert torch.equal(again.cpu(), fresh)
    assert not torch.equal(fresh, expected)
