"""What a run is: its files are whole, or mended, or refused; its data and versions are part of it."""

import random
from pathlib import Path

import pytest

from sparring.lab.compare import read_runs
from sparring.lab.data.fingerprint import noted
from sparring.lab.errors import RunError
from sparring.lab.pool import Job, finished
from sparring.lab.registry import task
from sparring.lab.report.build import build
from sparring.lab.report.story import Chapter, write_story
from sparring.lab.runs import checkpoint, environment, files
from sparring.lab.runs.load import load_run, score_run
from sparring.lab.runs.run import execute
from sparring.lab.task import Setting


def plain(**changes: object) -> Setting:
    return task("sequential-digits").setting("plain", overrides={"epochs": 2, "hidden": 8, **changes})


def ratings(folder: Path, seed: int) -> Path:
    """A data folder with 60 users of 40 films."""
    draw, path = random.Random(seed), folder / "movielens" / "ml-100k" / "u.data"
    path.parent.mkdir(parents=True)
    lines = [f"{u}\t{i}\t{draw.choice((4, 5))}\t1\n" for u in range(60) for i in draw.sample(range(40), 15)]
    path.write_text("".join(lines))
    return folder


def films(data: Path, method: str = "vae-drop") -> Setting:
    short = {"validation_users": 10, "test_users": 10, "pseudo_users": 4, "hidden": 8, "latent": 4, "batch": 10}
    changes = {**short, "epochs": 2 if method == "vae-drop" else 0}
    return task("movielens").setting(method, "small", 0, data, changes)


@pytest.mark.parametrize("method", ["vae-drop", "ease"])
def test_other_data_is_another_run(tmp_path: Path, method: str) -> None:
    ours, theirs = ratings(tmp_path / "ours", 0), ratings(tmp_path / "theirs", 1)
    setting, other = films(ours, method), films(theirs, method)
    run = tmp_path / "run"
    result = execute(setting, run)
    assert execute(setting, run) == result
    assert finished(Job(setting, run))
    assert score_run(run, "test", ours) == result["test"]
    for reuse in (lambda: execute(other, run), lambda: finished(Job(other, run)), lambda: load_run(run, theirs)):
        with pytest.raises(RunError, match=r"was trained on other data: movielens/ml-100k/u.data differs"):
            reuse()
    assert files.read_json(run / "result.json")["test"] == result["test"], "the run is as it was"


def words(folder: Path, last: str = "stop") -> Setting:
    """A language model on a text of its own."""
    (folder / "ptb").mkdir(parents=True, exist_ok=True)
    for part in ("train", "valid", "test"):
        (folder / "ptb" / f"ptb.{part}.txt").write_text(f" go on and {last} \n" * 50)
    return task("ptb").setting("plain", "small", 0, folder, {"epochs": 1})


def test_what_a_process_remembers_counts_as_read(tmp_path: Path) -> None:
    setting = words(tmp_path)
    found = []
    for _ in range(2):
        with noted() as files_read:
            task("ptb").load(setting)
        found.append(files_read)
    assert found[0] == found[1]
    assert {path.name for path in found[0]} == {"ptb.train.txt", "ptb.valid.txt", "ptb.test.txt"}


def test_what_a_process_remembers_is_forgotten_when_a_file_changes(tmp_path: Path) -> None:
    task("ptb").load(words(tmp_path))
    before = task("ptb").load(words(tmp_path)).extra["vocabulary"]
    after = task("ptb").load(words(tmp_path, last="halt")).extra["vocabulary"]
    assert "stop" in list(before.words)
    assert "halt" in list(after.words)


def test_a_stopped_run_does_not_go_on_with_other_data(tmp_path: Path) -> None:
    ours, theirs = ratings(tmp_path / "ours", 0), ratings(tmp_path / "theirs", 1)

    def crash(session: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(films(ours), tmp_path / "run", "", 0.0, crash)
    with pytest.raises(RunError, match="other data"):
        execute(films(theirs), tmp_path / "run")
    file = ours / "movielens" / "ml-100k" / "u.data"
    file.write_text(file.read_text().replace("5", "4", 1))
    with pytest.raises(RunError, match="other data"):
        execute(films(ours), tmp_path / "run")


def test_other_versions_are_noted_and_no_wall(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def stop(session: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(plain(), tmp_path, "", 0.0, stop)
    real = environment.describe()
    later = {**real, "packages": {**real["packages"], "torch": "99.1"}}
    monkeypatch.setattr(environment, "describe", lambda: later)
    execute(plain(), tmp_path)
    assert f"torch {real['packages']['torch']} -> 99.1" in caplog.text
    assert files.read_json(tmp_path / "environment.json")["resumed"][0]["packages"]["torch"] == "99.1"


SPOILT = ["config.json", "environment.json", "metrics.jsonl", "result.json", "figures.json"]


@pytest.mark.parametrize("file", SPOILT)
@pytest.mark.parametrize("how", ["cut", "digit", "bytes", "empty", "gone", "folder"])
def test_the_report_leaves_out_a_damaged_run_and_names_it(two_runs: Path, tmp_path: Path, file: str, how: str) -> None:
    import shutil

    out = tmp_path / "out"
    shutil.copytree(two_runs, out)
    bad, good = out / "a", out / "b"
    path = bad / file
    raw = path.read_bytes()
    number = max(place for place, byte in enumerate(raw[: len(raw) // 2]) if chr(byte).isdigit())
    if how in ("gone", "folder"):
        path.unlink()
        if how == "folder":
            path.mkdir()
    else:
        digit = bytes([raw[number] ^ 1])
        changed = {
            "cut": raw[:-20],
            "digit": raw[:number] + digit + raw[number + 1 :],
            "bytes": b"\xff" * 9,
            "empty": b"",
        }
        path.write_bytes(changed[how])
    said: list[str] = []
    page = build(out, tmp_path / "report.html", said.append).read_text()
    if not (file in ("result.json", "config.json") and how == "gone"):  # then it is no finished run at all
        assert len(said) == 1
        assert str(path) in said[0] or str(bad) in said[0]
        assert "Left out" in page
    assert [run.path for run in read_runs(out, lambda sentence: None)] == [good]


@pytest.mark.parametrize("how", ["cut", "digit", "other"])
def test_a_damaged_story_is_named_and_the_tables_stay(two_runs: Path, tmp_path: Path, how: str) -> None:
    import shutil

    out = tmp_path / "out"
    shutil.copytree(two_runs, out)
    write_story(out, [Chapter("sequential-digits", "why?", ("plain",), "error", "lower", "error", "seed 7")])
    text = (out / "story.json").read_text()
    changed = {"cut": text[:-20], "digit": text.replace("7", "8", 1), "other": '{"chapters": [{"task": "x"}]}'}
    (out / "story.json").write_text(changed[how])
    said: list[str] = []
    page = build(out, tmp_path / "report.html", said.append).read_text()
    assert len(said) == 1
    assert str(out / "story.json") in said[0]
    assert "Left out" in page
    assert "why?" not in page
    assert "sequential-digits" in page


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs")
    for name, seed in (("a", 0), ("b", 1)):
        setting = task("sequential-digits").setting("plain", seed=seed, overrides={"epochs": 1, "hidden": 8})
        execute(setting, out / name)
    return out


@pytest.mark.parametrize("lost", ["result.json", "figures.json", "metrics.jsonl", "state.json", "best", "cut", "bit"])
def test_the_same_command_mends_a_finished_run(tmp_path: Path, lost: str, caplog: pytest.LogCaptureFixture) -> None:
    first = execute(plain(), tmp_path)
    path = next(tmp_path.glob("best-*")) if lost in ("best", "bit") else tmp_path / lost
    if lost == "bit":
        flip(path)
    elif lost == "cut":
        (tmp_path / "result.json").write_text("{")
    else:
        path.unlink()
    again = execute(plain(), tmp_path)
    assert {**again, "seconds_per_step": 0} == {**first, "seconds_per_step": 0}
    assert score_run(tmp_path, "test") == first["test"]
    assert lost == "result.json" or "not all of its files are good" in caplog.text


def flip(path: Path) -> None:
    """Change the last bit of a file."""
    raw = path.read_bytes()
    path.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))


@pytest.mark.parametrize("part", ["state", "best"])
def test_a_damaged_tensor_file_is_written_again_by_the_run_that_goes_on(tmp_path: Path, part: str) -> None:
    whole = execute(plain(), tmp_path / "whole")

    run = tmp_path / "run"

    def stop(session) -> None:
        names = [run / name for name in (checkpoint.NEWEST, checkpoint.OLDER)]
        if session.progress.epoch and all(name.exists() for name in names):
            newest, older = (checkpoint.index_of(name)[part]["file"] for name in names)
            if newest != older:
                flip(run / newest)
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(plain(), run, "", 0.0, stop)
    assert {**execute(plain(), run), "seconds_per_step": 0} == {**whole, "seconds_per_step": 0}
    assert score_run(run, "test") == whole["test"]


def test_evaluate_never_scores_another_model_than_the_result_is_about(tmp_path: Path) -> None:
    execute(plain(), tmp_path)
    parts = checkpoint.load(tmp_path)
    checkpoint.save(tmp_path, {"best": {name: tensor + 1 for name, tensor in parts["best"].items()}})
    with pytest.raises(files.Damaged, match="not those of its result"):
        score_run(tmp_path, "test")


def test_metrics_that_lack_an_epoch_of_the_checkpoint_are_refused(tmp_path: Path) -> None:
    def crash(session) -> None:
        if (session.progress.epoch, session.progress.batch) == (1, 3):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(plain(), tmp_path, "", 0.0, crash)
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(files.Damaged, match="lacks epochs"):
        execute(plain(), tmp_path)


def test_a_removed_folder_is_not_told_to_make_room(tmp_path: Path) -> None:
    import shutil

    def remove(session: object) -> None:
        shutil.rmtree(tmp_path / "run", ignore_errors=True)

    with pytest.raises(RunError, match="its folder was removed") as raised:
        execute(plain(), tmp_path / "run", "", 0.0, remove)
    assert "room" not in str(raised.value)
