"""Sweeps: what is asked for is visited, once, over any number of calls."""

from dataclasses import replace
from pathlib import Path

import optuna
import pytest

from sparring.lab import sweep
from sparring.lab.cli import work as cli_work
from sparring.lab.errors import Diverged, Interrupted, LabError, RunError
from sparring.lab.registry import task
from sparring.lab.runs.checkpoint import read_json
from sparring.lab.runs.run import execute
from sparring.lab.sweep import Plan, parse_param, study_of, sweep_all

SHORT = {"epochs": 1, "hidden": 16}


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def do(wanted, cores, **rest):
        for job in wanted:
            execute(job.setting, job.path)
        return {}

    monkeypatch.setattr(cli_work, "do_jobs", do)


def plan_of(out: Path, *params: str, seeds=(0,), **changes: object) -> Plan:
    ranges = dict(parse_param(text) for text in params)
    return Plan(task("sequential-digits"), "vat", "tiny", list(seeds), ranges, out, None, {**SHORT, **changes})


def test_a_list_is_visited_point_by_point_with_every_seed(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "radius=0.1,0.5,2", seeds=(0, 1))
    trials = sweep_all(plan, None, 1)
    assert sorted(trial.settings["radius"] for trial in trials) == [0.1, 0.5, 2]
    assert trials[0].value == min(trial.value for trial in trials)
    assert all(trial.value == pytest.approx(sum(trial.spread) / 2) for trial in trials)
    folders = {path.name for path in (tmp_path / "sequential-digits" / "tiny").iterdir()}
    assert {f"vat@epochs=1,hidden=16,radius={r}" for r in ("0.1", "0.5", "2.0")} == folders


def test_a_stopped_sweep_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, calls = plan_of(tmp_path, "radius=0.1:10:log"), []
    real = cli_work.do_jobs

    def stop_at_second(wanted, cores, **rest):
        calls.append(wanted)
        if len(calls) == 2:
            raise Interrupted("stopped")
        return real(wanted, cores)

    with monkeypatch.context() as patch:
        patch.setattr(cli_work, "do_jobs", stop_at_second)
        with pytest.raises(Interrupted):
            sweep_all(plan, 3, 1)
    assert len(sweep_all(plan, 3, 1)) == 3
    states = [trial.state for trial in study_of(plan).trials]
    assert states.count(optuna.trial.TrialState.COMPLETE) == 3
    assert optuna.trial.TrialState.RUNNING not in states
    assert len(sweep_all(plan, 3, 1)) == 3


def test_a_diverged_trial_counts_without_a_score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = cli_work.do_jobs

    def diverge(wanted, cores, **rest):
        bad = {job: Diverged("the loss is nan") for job in wanted if job.setting["radius"] > 1}
        real([job for job in wanted if job not in bad], cores)
        return bad

    monkeypatch.setattr(cli_work, "do_jobs", diverge)
    assert [trial.settings["radius"] for trial in sweep_all(plan_of(tmp_path, "radius=0.1,2"), None, 1)] == [0.1]


@pytest.mark.parametrize(
    "text", ["radius", "radius=", "=1:2", "radius=1:2:lin", "radius=a:b", "radius=2:1", "radius=0:1:log"]
)
def test_bad_ranges_are_one_sentence(text: str) -> None:
    with pytest.raises(LabError, match="does not fit"):
        parse_param(text)


def test_bad_names_and_storages_fail_before_any_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_work, "do_jobs", lambda *a, **k: pytest.fail("ran"))
    with pytest.raises(LabError, match="did you mean radius"):
        sweep_all(plan_of(tmp_path, "radus=1:2"), 1, 1)
    broken = sweep.Plan(**{**vars(plan_of(tmp_path, "radius=1:2")), "storage": "nonsense://x"})
    with pytest.raises(RunError, match="cannot open the sweep's storage"):
        sweep_all(broken, 1, 1)


def test_another_list_or_kind_of_range_is_searched_too(tmp_path: Path) -> None:
    first = sweep_all(plan_of(tmp_path, "radius=1,2"), None, 1)
    wider = sweep_all(plan_of(tmp_path, "radius=1,2,2,4"), None, 1)
    assert sorted(trial.settings["radius"] for trial in wider) == [1, 2, 4]
    assert {t.settings["radius"]: t.value for t in first}.items() <= {
        t.settings["radius"]: t.value for t in wider
    }.items()
    assert len(sweep_all(plan_of(tmp_path, "radius=0.5:8:log"), 2, 1)) == 2
    (file,) = (tmp_path / "sweep").glob("*.json")
    trials = read_json(file)["trials"]
    assert len(trials) == 5, "the report shows the points of all of them"
    assert [trial["value"] for trial in trials] == sorted(trial["value"] for trial in trials)


def test_files_with_other_contents_are_searched_anew(tmp_path: Path) -> None:
    file, ranges = tmp_path / "mine.csv", dict([parse_param("lr=0.01,0.03")])

    def best(text: str) -> list[tuple[float, float]]:
        file.write_text(text)
        plan = Plan(task("table"), "plain", "tiny", [0], ranges, tmp_path, None, {"train": str(file), "epochs": 1})
        return [(trial.value, trial.test) for trial in sweep_all(plan, None, 1)]

    rows = [f"{k % 7},{'ab'[k % 7 > 2]}" for k in range(80)]
    first = best("\n".join(["x,target", *rows]))
    chance = best("\n".join(["x,target", *(f"{k * k % 11},{'ab'[k % 2]}" for k in range(80))]))
    assert chance != first
    assert best("\n".join(["x,target", *rows])) == first
    assert len(list((tmp_path / "sweep").glob("*.json"))) == 2


def test_a_damaged_summary_is_written_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    plan = plan_of(tmp_path, "radius=1,2")
    found = sweep_all(plan, None, 1)
    file = next((tmp_path / "sweep").glob("*.json"))
    whole = read_json(file)
    file.write_text(file.read_text()[:-40])
    assert sweep_all(plan, None, 1) == found
    assert read_json(file) == whole
    assert "is written anew" in caplog.text


@pytest.mark.parametrize("spoilt", ['{"op_code": 99}\n', "[]\n", '"x"\n', "{}\n"])
def test_a_damaged_journal_is_one_sentence(tmp_path: Path, spoilt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep.storage, "ATTEMPTS", 1)
    journal = tmp_path / "log"
    plan = replace(plan_of(tmp_path, "radius=1,2"), storage=f"journal:{journal}")
    study_of(plan)
    journal.write_text(spoilt + journal.read_text())
    with pytest.raises(RunError, match="the sweep's storage") as raised:
        sweep_all(plan, None, 1)
    assert "\n" not in str(raised.value)
