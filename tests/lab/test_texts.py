"""Streams: truncated back-propagation with carried state, averaged weights, the same bits after a crash."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import nn

import reading
from sparring.lab import registry
from sparring.lab.errors import LabError
from sparring.lab.runs import files
from sparring.lab.runs.folder import read_metrics
from sparring.lab.runs.run import execute, prepare
from sparring.lab.text import Text
from sparring.lab.training.averaging import Average
from sparring.lab.training.train import train
from sparring.lab.training.updates import Update


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "tasks", registry.tasks)  # puts it back at the end
    reading.register()


def outcome(folder: Path) -> tuple[bytes, list[object]]:
    result = files.read_json(folder / "result.json")
    lines = [{k: v for k, v in line.items() if k != "seconds_per_step"} for line in read_metrics(folder)]
    weights = next(folder.glob("*.safetensors")).read_bytes()
    return weights, [*lines, {k: v for k, v in result.items() if k != "seconds_per_step"}]


@pytest.mark.parametrize("varied", [False, True])
def test_windows_cover_the_text_once(varied: bool) -> None:
    text = Text(torch.arange(5003), window=35, varied=varied)
    windows = text.windows(columns=3, seed=1, epoch=2)
    assert windows[0].start == 0
    assert windows[-1].stop == 5003 // 3 - 1
    assert all(a.stop == b.start for a, b in pairwise(windows))
    lengths = [w.stop - w.start for w in windows[:-1]]
    assert (len(set(lengths)) > 5) == varied
    assert windows == text.windows(3, 1, 2)
    assert (windows == text.windows(3, 1, 3)) != varied
    for window in windows:
        (tokens, _), targets = text.batch(window, 3, slice(1, 3), None)
        assert torch.equal(targets, tokens + 1)  # the text counts up: the next word is one more
    if varied:
        assert text.rate(slice(0, 70)) == 2.0
        assert max(lengths) <= 45
        assert min(lengths) >= 5


def test_a_text_too_short_for_its_columns_is_refused() -> None:
    with pytest.raises(ValueError, match="7 words has no 4 columns"):
        Text(torch.arange(7)).windows(4, 0, 0)


def test_training_carries_the_state_and_scales_the_rate() -> None:
    """The loop against truncated back-propagation written out by hand."""
    setting = reading.READ.setting("plain", overrides={"epochs": 2})
    session = prepare(setting)
    state = torch.get_rng_state()
    train(session)
    torch.set_rng_state(state)
    by_hand = prepare(setting)
    torch.set_rng_state(state)
    model, text = by_hand.model, by_hand.data.text
    optimiser = torch.optim.SGD(model.parameters(), lr=1.0)
    columns = text.words[: 75 * 4].view(4, 75)
    for epoch in range(2):
        hidden = None
        for window in text.windows(4, 0, epoch):
            outputs = model(columns[:, window], hidden)
            hidden = tuple(s.detach() for s in outputs.state)
            targets = columns[:, window.start + 1 : window.stop + 1]
            optimiser.zero_grad()
            nn.functional.cross_entropy(outputs.logits.flatten(0, 1), targets.flatten()).backward()
            optimiser.param_groups[0]["lr"] = (window.stop - window.start) / 6
            optimiser.step()
    for name, value in model.state_dict().items():
        assert torch.allclose(value, session.model.state_dict()[name], atol=1e-5), name


def test_an_update_of_several_windows_has_the_rate_of_their_mean_length(monkeypatch: pytest.MonkeyPatch) -> None:
    session, rates = prepare(reading.READ.setting("plain", overrides={"epochs": 1, "accumulate": 3})), []
    real = Update.__call__

    def noted(update: Update, rate: float, items: object) -> None:
        rates.append(rate)
        real(update, rate, items)

    monkeypatch.setattr(Update, "__call__", noted)
    train(session)
    lengths = [w.stop - w.start for w in session.data.text.windows(4, 0, 0)]
    assert len(set(lengths)) > 1
    groups = [lengths[k : k + 3] for k in range(0, len(lengths), 3)]
    assert rates == pytest.approx([sum(group) / len(group) / 6 for group in groups])


def test_the_first_pass_of_a_step_leaves_the_state() -> None:
    """Two masks a step: what goes on is what the first pass saw, not the last."""
    session = prepare(reading.READ.setting("fraternal"))
    seen = []
    session.model.register_forward_hook(lambda module, inputs, output: seen.append((inputs[1], output.state)))
    session.model.train()
    windows = session.batches()
    for _ in range(2):
        inputs, targets = session.batch(next(windows))
        list(session.losses(inputs, targets))
        session.progress.batch += 1
    (start, left), (again, _), (third, _), _ = seen
    assert start is None
    assert again is None
    assert all(torch.equal(a, b) for a, b in zip(third, left, strict=True))


class Crash(Exception):
    """What a test throws into a run."""


@pytest.mark.parametrize("method", ["plain", "fraternal"])
@pytest.mark.parametrize("at", [3, 17])
def test_a_crash_in_the_middle_of_an_epoch_changes_nothing(tmp_path: Path, method: str, at: int) -> None:
    setting = reading.READ.setting(method, overrides={"average": "always"})
    execute(setting, tmp_path / "whole")

    def crash(session) -> None:
        if session.progress.step == at:
            raise Crash

    with pytest.raises(Crash):
        execute(setting, tmp_path / "crashed", checkpoint_every=0.0, watch=crash)
    execute(setting, tmp_path / "crashed")
    assert outcome(tmp_path / "crashed") == outcome(tmp_path / "whole")


@pytest.mark.parametrize("late", [0, 1])
def test_a_crash_around_the_switch_to_averaging_changes_nothing(tmp_path: Path, late: int) -> None:
    """The mean begins with the update after the epoch whose score was worse; a run cut there, or right after, knows it."""
    setting = reading.READ.setting(
        "plain", overrides={"average": "stalled", "average_patience": 0, "epochs": 4, "lr": 8.0}
    )
    ends: list[int] = []

    def note(session) -> None:
        if session.progress.batch == session.per_epoch:
            ends.append(session.progress.step)
        last.append((session.progress.step, session.update.average.count))

    last: list[tuple[int, int]] = []
    execute(setting, tmp_path / "whole", watch=note)
    scores = [line["validation"]["loss"] for line in read_metrics(tmp_path / "whole")]
    worse = next(k for k in range(1, 4) if scores[k] > min(scores[:k]))
    assert worse < 3, "the toy must stall before its last epoch"
    assert [count for _, count in last] == [max(0, step - ends[worse]) for step, _ in last]

    def crash(session) -> None:
        if session.progress.step == ends[worse] + late:
            raise Crash

    with pytest.raises(Crash):
        execute(setting, tmp_path / "crashed", checkpoint_every=0.0, watch=crash)
    execute(setting, tmp_path / "crashed")
    assert outcome(tmp_path / "crashed") == outcome(tmp_path / "whole")


def test_the_state_in_the_checkpoint_matters(tmp_path: Path) -> None:
    """A run that forgets its state ends elsewhere: the test above would see it."""
    setting = reading.READ.setting("plain")
    execute(setting, tmp_path / "whole")

    def forget(session) -> None:
        if session.progress.step == 3:
            session.memory.carried = None

    execute(setting, tmp_path / "forgetful", watch=forget)
    assert outcome(tmp_path / "forgetful")[0] != outcome(tmp_path / "whole")[0]


def test_the_average_is_that_of_torch() -> None:
    torch.manual_seed(0)
    ours, theirs = nn.Linear(3, 2), nn.Linear(3, 2)
    theirs.load_state_dict(ours.state_dict())
    average = Average(ours, "always")
    sgd = torch.optim.SGD(ours.parameters(), lr=0.3)
    asgd = torch.optim.ASGD(theirs.parameters(), lr=0.3, lambd=0.0, t0=0)
    for step in range(9):
        x = torch.randn(4, 3)
        for model, optimiser in ((ours, sgd), (theirs, asgd)):
            optimiser.zero_grad()
            model(x).square().sum().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimiser.step()
        if step:  # torch's mean forgets the first update: its weight is 1 twice
            average.add()
    with average.placed():
        for mine, parameter in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert torch.allclose(mine, asgd.state[parameter]["ax"], atol=1e-6)
    assert torch.allclose(ours.weight, theirs.weight, atol=1e-6)


def test_the_non_monotone_rule() -> None:
    """As in algorithm 1 of Merity et al.: begin when the score is above the best one that is more than n epochs old."""
    average = Average(nn.Linear(1, 1), "stalled", patience=2)
    began = []
    for score in (5.0, 4.0, 4.5, 4.6, 4.4):
        average.watch(score)
        began.append(bool(average.mean))
    assert began == [False, False, False, False, True]  # 4.4 > min(5.0, 4.0); 4.6 had only 5.0 to beat


def test_best_weights_are_the_averaged_ones(tmp_path: Path) -> None:
    session = prepare(reading.READ.setting("plain", overrides={"average": "always", "epochs": 1}))
    train(session)
    with session.update.average.placed():
        for name, value in session.model.state_dict().items():
            assert torch.equal(session.best_weights[name], value)
    assert not torch.equal(session.best_weights["head.weight"], session.model.head.weight)


def test_clipping_by_value_and_without_some_parameters() -> None:
    setting = reading.READ.setting("plain", overrides={"clip_value": 0.01, "clip_except": "embedding"})
    session = prepare(setting)
    for p in session.model.parameters():
        p.grad = torch.ones_like(p)
    before = {name: p.detach().clone() for name, p in session.model.named_parameters()}
    session.update()
    for name, p in session.model.named_parameters():
        size = 1.0 if name.startswith("embedding") else 0.01
        assert torch.allclose(before[name] - p, torch.full_like(p, size)), name


def test_parameters_left_out_of_clipping_must_be_there() -> None:
    with pytest.raises(LabError, match="they begin with embedding"):
        prepare(reading.READ.setting("plain", overrides={"clip": 1.0, "clip_except": "embeding"}))


def test_the_gaussian_ramp_down_is_that_of_the_released_code() -> None:
    import math

    from sparring.lab.task import DEFAULTS, Setting
    from sparring.lab.training.updates import make_optimiser, make_schedule

    values = {**DEFAULTS, "lr": 1.0, "schedule": "gaussian", "decay_from": 0.8, "epochs": 25, "optimiser": "sgd"}
    optimiser = make_optimiser(nn.Linear(1, 1), Setting("t", "m", "tiny", 0, None, values))
    schedule = make_schedule(optimiser, Setting("t", "m", "tiny", 0, None, values), 25 * 4)
    for epoch in range(25):
        late = max(0, epoch - 20) * 0.5
        for _ in range(4):
            assert optimiser.param_groups[0]["lr"] == pytest.approx(math.exp(-late * late / 5)), epoch
            optimiser.step()
            schedule.step()


def test_training_wastes_no_time_on_numbers_that_are_nearly_zero() -> None:
    seen = []
    session = prepare(reading.READ.setting("plain", overrides={"epochs": 1}))
    session.model.register_forward_hook(lambda *_: seen.append(float(torch.tensor([1e-20]) * 1e-20)))
    train(session)
    assert set(seen) == {0.0}
    assert float(torch.tensor([1e-20]) * 1e-20) > 0
