"""Records: whole lines whoever writes, torn lines seen, runs recognised."""

import json
import multiprocessing
from pathlib import Path

import pytest

from sparring.lab.errors import LabError
from sparring.lab.registry import task
from sparring.lab.studies.library import studies
from sparring.lab.studies.records import Record, append, read
from sparring.lab.studies.results import results

LINE = {
    "task": "t",
    "scale": "tiny",
    "method": "m",
    "values": {},
    "role": "tuning",
    "version": 1,
    "validation": {},
    "test": None,
}


def write_many(path: str, writer: int) -> None:
    for k in range(40):
        append(Path(path), {**LINE, "seed": 1000 * writer + k, "padding": "x" * 5000})


def test_two_processes_never_interleave(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "a.jsonl"
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=write_many, args=(str(path), k)) for k in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert sorted(record.seed for record in read(path)) == sorted(1000 * w + k for w in range(3) for k in range(40))
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_a_torn_line_is_left_out_and_hurts_no_later_one(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    append(path, {**LINE, "seed": 1})
    whole = path.read_bytes()
    for cut in range(len(whole) + 1, 2 * len(whole)):
        path.write_bytes((whole + whole)[:cut])
        assert [r.seed for r in read(path)] == [1] * (1 + (cut == 2 * len(whole) - 1))
    append(path, {**LINE, "seed": 2})
    path.write_bytes(path.read_bytes()[:-30])
    append(path, {**LINE, "seed": 3, "error": float("nan")})
    seeds = [r.seed for r in read(path)]
    assert seeds[-1] == 3
    assert 2 not in seeds
    assert read(tmp_path / "absent.jsonl") == []


def test_lines_of_another_make_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('[1, 2]\n{"seed": 3}\nnull\n\xff\n', encoding="latin-1")
    assert read(path) == []


def test_a_changed_digit_is_not_believed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a.jsonl"
    append(path, {**LINE, "seed": 1, "test": {"error": 24.33}})
    path.write_text(path.read_text().replace("24.33", "24.13"))
    assert read(path) == []
    assert "1 damaged line" in caplog.text


@pytest.mark.parametrize("wrong", [{"seed": "x"}, {"test": 3}, {"values": []}, {"validation": {"error": "low"}}])
def test_a_record_of_the_wrong_kind_or_without_a_seal_is_left_out(tmp_path: Path, wrong: dict[str, object]) -> None:
    path = tmp_path / "a.jsonl"
    append(path, {**LINE, "seed": 1})
    append(path, {**LINE, "seed": 1, **wrong})
    with open(path, "a") as file:
        file.write(json.dumps({**LINE, "seed": 2}) + "\n" + "[" * 5000)
    assert [record.seed for record in read(path)] == [1]


def test_a_record_belongs_to_its_setting_seed_role_and_version() -> None:
    entry = task("few-labels-digits")
    setting = entry.setting("noise", seed=3, overrides={"radius": 0.5})
    line = {**LINE, "task": entry.name, "method": "noise", "seed": 3, "values": dict(setting.values)}
    mine = Record(json.loads(json.dumps(line)))
    assert mine.of(setting, "tuning", 1)
    assert not mine.of(setting, "evaluation", 1)
    assert not mine.of(setting, "tuning", 2)
    assert not mine.of(entry.setting("noise", seed=4, overrides={"radius": 0.5}), "tuning", 1)
    assert not mine.of(entry.setting("noise", seed=3, overrides={"radius": 1.0}), "tuning", 1)
    assert not mine.of(entry.setting("plain", seed=3), "tuning", 1)
    # A setting that came later is at its default in old records, unless the study asks for something.
    older = Record({**line, "values": {k: v for k, v in line["values"].items() if k != "weight"}})
    assert older.of(setting, "tuning", 1)
    assert not older.of(entry.setting("noise", seed=3, overrides={"radius": 0.5, "weight": 2.0}), "tuning", 1)


def test_a_record_with_something_derived_is_of_another_model() -> None:
    entry = task("few-labels-digits")
    setting = entry.setting("noise", seed=3)
    line = {**LINE, "task": entry.name, "method": "noise", "seed": 3}
    assert Record({**line, "values": dict(setting.values)}).of(setting, "tuning", 1)
    assert not Record({**line, "values": {**setting.values, "encoder_contents": "scratch"}}).of(setting, "tuning", 1)


def test_records_are_read_alike_where_the_model_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """`encoder=auto` is then another encoder; the runs that were recorded are still those of MiniLM."""
    folder = Path(__file__).resolve().parents[3] / "studies"
    for name in ("salt-cola", "salt-sst-2"):
        study = studies()[name]
        here = results(study, folder)
        assert here.done > 20
        with monkeypatch.context() as without:
            without.setattr("sparring.lab.studies.study.find_spec", lambda package: None)
            without.setattr("sparring.lab.tasks.encoders.minilm_folder", lambda: None)
            assert repr(results(study, folder)) == repr(here)  # some figures are nan


def test_before_there_was_validated_all_of_the_held_out_sentences_validated() -> None:
    entry = task("sst-2")
    setting, all_of_them = (entry.setting("plain", "small", overrides=changes) for changes in ({}, {"validated": 0}))
    assert setting["validated"] == 1000
    values = {name: value for name, value in setting.values.items() if name != "validated"}
    line = {**LINE, "task": "sst-2", "scale": "small", "method": "plain", "seed": setting.seed, "values": values}
    assert not Record(line).of(setting, "tuning", 1)
    assert Record(line).of(all_of_them, "tuning", 1)


def test_a_figure_that_the_runs_do_not_have_is_no_divergence() -> None:
    whole = Record({**LINE, "seed": 1, "test": {"accuracy": 90.0, "margin": None}})
    assert whole.figure("test", "accuracy") == 90.0
    assert whole.figure("test", "margin") != whole.figure("test", "margin")
    assert Record({**LINE, "seed": 1}).figure("test", "accuracy") != 0
    with pytest.raises(LabError, match=r"no test figure 'audit'; they have accuracy, margin"):
        whole.figure("test", "audit")
