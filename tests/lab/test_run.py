"""Runs: killed at any moment they end in the same bits; the methods of a comparison start equal."""

import multiprocessing
import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch

from sparring.lab.errors import Interrupted, LabError, RunError
from sparring.lab.registry import task
from sparring.lab.runs import files
from sparring.lab.runs.folder import folder_of, read_figures, read_metrics
from sparring.lab.runs.load import load_run, score_run
from sparring.lab.runs.run import execute, prepare
from sparring.lab.task import Setting

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["sparring.lab.runs.run", "sparring.lab.tasks.sequences.task"])


def setting_of(method: str, **changes: object) -> Setting:
    return task("sequential-digits").setting(method, overrides={"epochs": 2, "hidden": 24, **changes})


def outcome(folder: Path) -> tuple[bytes, list[object]]:
    """Everything that must not depend on how often a run was killed."""
    (weights,) = [path.read_bytes() for path in folder.glob("*.safetensors")]
    result = files.read_json(folder / "result.json")
    lines = [{k: v for k, v in line.items() if k != "seconds_per_step"} for line in read_metrics(folder, tail=False)]
    return weights, [*lines, *read_figures(folder), {k: v for k, v in result.items() if k != "seconds_per_step"}]


def child(setting: Setting, path: Path) -> None:
    torch.set_num_threads(1)
    execute(setting, path, checkpoint_every=0.0)


def test_killed_at_random_moments_it_ends_in_the_same_bits(tmp_path: Path) -> None:
    setting = setting_of("adversarial_dropout", flips=0.2)
    execute(setting, tmp_path / "whole")
    path, kills, longest = tmp_path / "killed", 0, 0.3
    while not (path / "result.json").exists():
        process = PROCESSES.Process(target=child, args=(setting, path))
        process.start()
        deadline = time.monotonic() + random.SystemRandom().uniform(0.05, longest)
        while time.monotonic() < deadline and process.is_alive():
            time.sleep(0.005)
        if process.is_alive():
            os.kill(process.pid, signal.SIGKILL)
            kills += 1
        process.join()
        longest *= 1.4  # so that a slow machine gets there too
        assert process.exitcode in (0, -signal.SIGKILL)
        assert kills < 60
    assert kills >= 3
    assert outcome(path) == outcome(tmp_path / "whole")


class Crash(Exception):
    """What a test throws into a run."""


@pytest.mark.parametrize("method", ["plain", "fraternal_dropout", "vat", "salt"])
@pytest.mark.parametrize("every", [0.0, 1e9])
def test_a_crash_and_a_restart_change_nothing(tmp_path: Path, method: str, every: float) -> None:
    setting = setting_of(method)
    execute(setting, tmp_path / "whole")
    at = random.SystemRandom().randrange(1, 40)

    def crash(session) -> None:
        if session.progress.step == at:
            raise Crash

    with pytest.raises(Crash):
        execute(setting, tmp_path / "crashed", checkpoint_every=every, watch=crash)
    execute(setting, tmp_path / "crashed")
    assert outcome(tmp_path / "crashed") == outcome(tmp_path / "whole"), f"crashed at step {at}"


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("rte", "smart"),  # averaged weights
        ("rte", "free_at"),  # a perturbation carried from batch to batch
        ("rte", "free_lb"),
        ("sst", "attention_at"),
        ("digits-ensemble", "lpd"),
        ("dropout-images", "lbd"),  # batch norm and learned rates
        ("movielens", "sivae-bernoulli"),
    ],
)
def test_methods_with_a_memory_resume_with_it(tmp_path: Path, name: str, method: str) -> None:
    known = task(name).setting(method).values
    short = {"epochs": 2, "examples": 96, "attacked": 5, "swept": 5, "margin_steps": 2, "samples": 2, "width": 16}
    setting = task(name).setting(method, overrides={k: v for k, v in short.items() if known.get(k)})
    execute(setting, tmp_path / "whole")

    def crash(session) -> None:
        if session.progress.step == session.per_epoch + 1:
            raise Crash

    with pytest.raises(Crash):
        execute(setting, tmp_path / "crashed", checkpoint_every=0.0, watch=crash)
    execute(setting, tmp_path / "crashed")
    assert outcome(tmp_path / "crashed") == outcome(tmp_path / "whole")


def test_accumulated_gradients_survive_a_crash(tmp_path: Path) -> None:
    setting = setting_of("plain", accumulate=3, epochs=1)
    execute(setting, tmp_path / "whole")

    def crash(session) -> None:
        if session.progress.step == 8:
            raise Crash

    with pytest.raises(Crash):
        execute(setting, tmp_path / "crashed", checkpoint_every=0.0, watch=crash)
    execute(setting, tmp_path / "crashed")
    assert outcome(tmp_path / "crashed") == outcome(tmp_path / "whole")


def test_ctrl_c_saves_and_the_same_call_goes_on(tmp_path: Path) -> None:
    setting = setting_of("vat")
    execute(setting, tmp_path / "whole")

    def press(session) -> None:
        if session.progress.step == 13:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted, match="epoch 1, batch 13"):
        execute(setting, tmp_path / "stopped", checkpoint_every=1e9, watch=press)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    resumed = []
    execute(setting, tmp_path / "stopped", watch=lambda session: resumed.append(session.progress.step))
    assert resumed[0] == 14
    assert outcome(tmp_path / "stopped") == outcome(tmp_path / "whole")


def test_a_finished_run_is_read_not_repeated(tmp_path: Path) -> None:
    setting = setting_of("plain")
    first = execute(setting, tmp_path)
    assert execute(setting, tmp_path, watch=lambda session: pytest.fail("trained again")) == first
    with pytest.raises(RunError, match="another lr"):
        execute(task("sequential-digits").setting("plain", overrides={**setting.overrides, "lr": 0.5}), tmp_path)


def test_a_finished_run_keeps_no_optimiser_state(tmp_path: Path) -> None:
    execute(task("sequential-digits").setting("plain", overrides={"epochs": 1, "hidden": 8}), tmp_path, "", 0.0)
    assert [path.name.partition("-")[0] for path in tmp_path.glob("*.safetensors")] == ["best"]


def test_a_second_process_is_turned_away(tmp_path: Path) -> None:
    with files.locked(tmp_path), pytest.raises(RunError, match="another process is writing"):
        execute(setting_of("plain"), tmp_path)


@pytest.mark.parametrize("name", ["sequential-digits", "movielens", "digits-ensemble"])
def test_methods_start_from_the_same_weights_and_see_the_same_batches(name: str) -> None:
    entry = task(name)
    trained = [method for method in entry.methods if method.objective is not None]
    sessions = [prepare(entry.setting(method.name, seed=3)) for method in trained]
    base = next(s for s in sessions if s.setting.method == entry.baseline)
    reference = base.model.state_dict()
    order = [index.tolist() for index in base.batches()]
    for session in sessions:
        state = session.model.state_dict()
        common = [n for n in state if n in reference and state[n].shape == reference[n].shape]
        assert common or name == "movielens"
        assert all(torch.equal(state[n], reference[n]) for n in common), session.setting.method
        if session.setting["batch"] == base.setting["batch"]:
            assert [index.tolist() for index in session.batches()] == order


def test_every_example_is_seen_once_an_epoch_and_the_order_changes() -> None:
    session = prepare(setting_of("plain"))
    first = torch.cat(list(session.batches()))
    assert sorted(first.tolist()) == list(range(1000))
    session.progress.epoch = 1
    assert torch.cat(list(session.batches())).tolist() != first.tolist()


def test_weights_can_be_scored_again(tmp_path: Path) -> None:
    result = execute(setting_of("plain"), tmp_path)
    assert score_run(tmp_path, "test") == result["test"]
    assert not load_run(tmp_path).model.training
    with pytest.raises(RunError, match="not a run folder"):
        load_run(tmp_path / "nothing")


def test_tensorboard_logs_hold_the_curves(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    execute(setting_of("vat"), tmp_path, tensorboard=True)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    wanted = [line["validation"]["error"] for line in read_metrics(tmp_path)]
    assert [event.value for event in events.Scalars("validation/error")] == pytest.approx(wanted)


def test_folders_are_named_after_what_was_changed(tmp_path: Path) -> None:
    assert folder_of(tmp_path, task("smnist").setting("plain", "paper", 2)) == tmp_path / "smnist/paper/plain/seed-2"
    strange = Setting("t", "m", "tiny", 0, None, {}, {"a": "../../x"})
    assert folder_of(tmp_path, strange).parents[2] == tmp_path / "t"
    assert ".." not in folder_of(tmp_path, strange).as_posix()


@pytest.mark.parametrize("changes", [{"batch": 0}, {"accumulate": 0}, {"optimiser": "adamm"}, {"schedule": "cosin"}])
def test_impossible_settings_are_one_sentence(tmp_path: Path, changes: dict[str, object]) -> None:
    with pytest.raises(LabError, match=r"at least 1|did you mean"):
        execute(setting_of("plain", **changes), tmp_path)
