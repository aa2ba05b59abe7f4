"""The command line as a user meets it: help, tables, exit codes, one-sentence errors."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sparring.lab.cli import main as cli
from sparring.lab.cli import parse as cli_parse
from sparring.lab.errors import LabError

RUN = ["run", "sequential-digits", "--set", "epochs=1", "--set", "hidden=16"]
SWEEP = ["sweep", "sequential-digits", "--method", "vat", "--param"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SPARRING_DATA", raising=False)
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.main(list(arguments))
    seen = capsys.readouterr()
    return code, seen.out, seen.err


def test_help_teaches_by_example(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = said(capsys, "--help")
    assert code == 0
    for command in ("tasks", "methods", "run", "compare", "sweep", "evaluate", "report", "data", "demo"):
        assert command in out
        if command not in ("tasks", "methods", "data"):
            code, text, _ = said(capsys, command, "--help")
            assert code == 0
            assert f"sparring {command}" in text.replace("\n", " ")
    assert "Exit codes" in out


def test_help_does_not_wait_for_what_it_does_not_need() -> None:
    heavy = "{'accelerate', 'sklearn', 'optuna', 'transformers'}"
    script = f"import sys; from sparring.lab.cli.main import main; main(['--help']); sys.exit(bool({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_lists(capsys: pytest.CaptureFixture[str]) -> None:
    assert "sequential-digits" in said(capsys, "tasks")[1]
    code, out, _ = said(capsys, "tasks", "rte")
    assert code == 0
    assert "free_lb" in out
    assert "plain (baseline)" in out
    lines = out.splitlines()
    paper = next(number for number, line in enumerate(lines) if line.startswith("paper: "))
    assert any(line.startswith("  salt: update=adam, step_size=1e-05") for line in lines[paper:])
    assert "weight_decay=0.0" in out[out.index("training loop, at every scale") :]  # what no scale says
    assert " lr=" not in out[out.index("training loop, at every scale") :]  # what every scale says
    code, out, _ = said(capsys, "methods", "salt")
    assert code == 0
    assert "sequential-digits" in out
    assert "mnist" in said(capsys, "data", "list")[1]
    assert "missing" in said(capsys, "data", "where", "mnist", "--data", "nowhere")[1]


def test_run_evaluate_report(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = said(capsys, *RUN, "--method", "vat", "--out", "r")
    assert (code, err) == (0, "")
    assert "\x1b" not in out, "colours outside a terminal"
    folder = next(Path("r").rglob("result.json")).parent
    assert str(folder) in out
    code, out, _ = said(capsys, "evaluate", str(folder))
    assert code == 0
    result = json.loads((folder / "result.json").read_text())
    assert f"{result['test']['error']:.4g}" in out
    code, out, _ = said(capsys, "report", "r")
    assert code == 0
    assert Path("r/report.html").exists()
    Path("shelf").mkdir()
    assert said(capsys, "report", "r", "--to", "shelf")[0] == 0
    assert Path("shelf/report.html").exists()
    assert json.loads((folder / "environment.json").read_text())["command"].startswith("sparring")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["run", "sequential-digit"], 2, "did you mean sequential-digits"),
        (["run", "sequential-digits", "--method", "satl"], 2, "did you mean salt"),
        (["run", "sequential-digits", "--scale", "tinny"], 2, "did you mean tiny"),
        ([*RUN, "--set", "lrr=1"], 2, "did you mean lr"),
        ([*RUN, "--set", "lr"], 2, "write --set name=value"),
        ([*RUN, "--set", "epochs=many"], 2, "whole number"),
        ([*RUN, "--set", "batch=0"], 2, "at least 1"),
        ([*RUN, "--set", "lr=nan"], 2, "lr=nan does not fit; it must be at least 0"),
        ([*RUN, "--set", "lr=-1"], 2, "at least 0"),
        ([*RUN, "--set", "lr=none"], 2, "a number like"),
        ([*RUN, "--set", "clip=-1"], 2, "at least 0"),
        ([*RUN, "--set", "warmup=3"], 2, "between 0 and 1"),
        ([*RUN, "--set", "precision=fp16"], 2, "did you mean bf16"),
        ([*RUN, "--set", "optimiser=adamm"], 2, "did you mean adam"),
        ([*RUN, "--set", "hidden=0"], 2, "cannot be run with epochs=1, hidden=0"),
        ([*RUN, "--data", "nowhere"], 2, "not a folder"),
        (["run", "smnist", "--scale", "small"], 3, "run `sparring data get mnist` where there is a network"),
        (["compare", "sequential-digits", "--seeds", "x"], 2, "--seeds 'x' does not fit"),
        (["compare", "sequential-digits", "--seeds", "0,4294967296"], 2, "does not fit"),
        (["compare", "sequential-digits", "--methods", "vatt"], 2, "did you mean vat"),
        (["compare", "sequential-digits", "--methods", ""], 2, "names no method"),
        (["compare", "sequential-digits", "--methods", "plain,vat,plain"], 2, "names plain twice"),
        ([*SWEEP, "radius"], 2, "does not fit"),
        ([*SWEEP, "radius=1,"], 2, "does not fit"),
        ([*SWEEP, "radius=1,2", "--param", "radius=3"], 2, "twice"),
        ([*SWEEP, "radius=1,2", "--set", "radius=3"], 2, "by --param and by --set"),
        ([*SWEEP, "optimiser=adam,adamm"], 2, "did you mean adam"),
        (["evaluate", "nowhere"], 4, "not a run folder"),
        (["evaluate", ".", "--split", "tset"], 2, "did you mean test"),
        (["report", "nowhere"], 2, "not a folder with runs"),
        (["data", "get", "minst"], 2, "did you mean mnist"),
        (["data", "get", "zzz"], 2, "known: ag_news"),
        (["data", "list", "--data", __file__], 3, "cannot be read (Not a directory)"),
        (["methods", "satl"], 2, "did you mean salt"),
    ],
)
def test_mistakes_are_one_sentence(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, words: str
) -> None:
    got, _, err = said(capsys, *arguments)
    assert got == code
    assert words in err
    assert err.startswith("sparring: ")
    assert "Traceback" not in err
    assert err.count("\n") == 1


def test_wrong_usage_and_unknown_commands(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = said(capsys, "comprae")
    assert code == 2
    assert "compare" in err
    assert said(capsys, "run")[0] == 2
    for option, value in (("--seed", "-1"), ("--seed", str(2**32)), ("--checkpoint-every", "nan"), ("--threads", "0")):
        assert said(capsys, "run", "sequential-digits", option, value)[0] == 2


def test_debug_shows_the_traceback(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "Traceback" in said(capsys, "run", "nothing", "--debug")[2]


def test_an_unwritable_place_and_a_damaged_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").write_text("")
    code, _, err = said(capsys, *RUN, "--out", "file")
    assert (code, "cannot write to" in err) == (4, True)
    said(capsys, *RUN, "--out", "r")
    folder = next(Path("r").rglob("result.json")).parent
    weights = next(folder.glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:100])
    code, _, err = said(capsys, "evaluate", str(folder))
    assert (code, "damaged" in err) == (4, True)
    (folder / "result.json").write_text("{")
    assert said(capsys, "report", "r")[0] == 4


def test_folders_of_any_name(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = said(capsys, *RUN, "--out", "one [red]two ü")
    assert (code, "run folder: one [red]two ü/" in out) == (0, True)
    folder = next(Path("one [red]two ü").rglob("result.json")).parent
    assert f"{folder}\n" in said(capsys, "evaluate", str(folder))[1]
    assert "report: one [red]two ü/report.html" in said(capsys, "report", "one [red]two ü")[1]


@pytest.mark.parametrize("command", ["evaluate", "report"])
@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.json", "{}"),
        ("config.json", "[]"),
        ("result.json", "{}"),
        ("environment.json", "{}"),
        ("state.json", '{"format": 1}'),
        ("state.json", '{"format": 1, "parts": {"best": {}}}'),
    ],
)
def test_files_that_lack_what_they_should_hold(
    here: Path, capsys: pytest.CaptureFixture[str], command: str, file: str, content: str
) -> None:
    said(capsys, *RUN)
    folder = next(Path("runs").rglob("result.json")).parent
    (folder / file).write_text(content)
    code, _, err = said(capsys, command, str(folder))
    needed = {
        "evaluate": ("config.json", "state.json", "result.json"),
        "report": ("config.json", "result.json", "environment.json"),
    }
    if file in needed[command]:
        assert (code, err.count("\n"), str(folder) in err) == (4, 1, True)
    else:
        assert (code, err) == (0, "")


def test_weights_that_do_not_fit(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, *RUN)
    folder = next(Path("runs").rglob("result.json")).parent
    from sparring.lab.runs import files

    config = files.read_json(folder / "config.json")
    files.write_json(folder / "config.json", {**config, "values": {**config["values"], "hidden": 8}})
    code, _, err = said(capsys, "evaluate", str(folder))
    assert (code, "do not fit the model" in err, err.count("\n")) == (4, True, 1)


def test_ctrl_c_outside_of_training_says_so_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def press(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sparring.lab.registry.task", press)
    code, _, err = said(capsys, "tasks", "sst")
    assert (code, "the same command goes on" in err) == (130, True)


def test_a_fault_of_ours_is_called_one(here: Path, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.setattr("sparring.lab.runs.run.prepare", lambda *a: 1 / 0)
    code, _, err = said(capsys, *RUN)
    assert code == 1
    assert "fault of sparring" in err


def test_ctrl_c_ends_cleanly_and_the_same_command_goes_on(here: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "sparring.lab.cli.main",
        "run",
        "sequential-digits",
        "--method",
        "vat",
        "--set",
        "epochs=500",
    ]
    process = subprocess.Popen([*command, "--out", "r", "--checkpoint-every", "0"], stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 120
    while not list(Path("r").rglob("state.json")) and time.monotonic() < until and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "the same command goes on" in err
    assert "Traceback" not in err


def test_ctrl_c_reaches_every_worker_of_a_comparison(here: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "sparring.lab.cli.main",
        "compare",
        "sequential-digits",
        "--methods",
        "vat",
        "--seeds",
        "1",
    ]
    process = subprocess.Popen(
        [*command, "--set", "epochs=500", "--cores", "2", "--checkpoint-every", "0", "--out", "r"],
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, start_new_session=True,
    )  # fmt: skip
    until = time.monotonic() + 240
    while len(list(Path("r").rglob("state.json"))) < 2 and time.monotonic() < until and process.poll() is None:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the whole group hears it
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    from sparring.lab.runs import checkpoint, files

    folders = [path.parent for path in Path("r").rglob("state.json")]
    assert len(folders) == 2
    for folder in folders:
        with files.locked(folder):  # nobody is left behind
            assert checkpoint.load(folder)["state"]["progress"]["step"] > 0


def test_arguments_mean_what_they_say() -> None:
    from sparring.lab.registry import task

    assert cli_parse.parse_methods("salt", task("sequential-digits")) == ["plain", "salt"]
    every = task("sequential-digits")
    assert cli_parse.parse_methods(None, every) == [method.name for method in every.methods]
    for text in ("", "-1", "1,1", "0"):
        with pytest.raises(LabError, match="--seeds"):
            cli_parse.parse_seeds(text)


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    import sparring

    code, out, _ = said(capsys, "--version")
    assert (code, out.split()[:2]) == (0, ["sparring", sparring.__version__])


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict, str]:
    """What a command says as JSON, which is all there is on standard output."""
    code, out, err = said(capsys, *arguments, "--json")
    return code, json.loads(out), err


def test_every_command_speaks_json(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "--version")[1]["exit_code"] == 0
    names = {task["name"] for task in told(capsys, "tasks")[1]["tasks"]}
    assert {"sst", "text", "images", "table"} <= names
    assert told(capsys, "tasks", "sst")[1]["task"]["score"] == "f1"
    assert "sst" not in told(capsys, "methods", "salt")[1]["methods"]["salt"]["tasks"]
    code, found, err = told(capsys, *RUN, "--out", "r")
    assert (code, "run folder" in err) == (0, True)
    saved = json.loads((Path(found["run"]) / "result.json").read_text())
    assert found["result"]["test"] == saved["test"]
    assert told(capsys, "evaluate", found["run"])[1]["figures"] == saved["test"]
    code, found, _ = told(
        capsys, *["compare", *RUN[1:]], "--methods", "plain,vat", "--seeds", "2", "--cores", "1", "--out", "r"
    )
    rows = {row["label"]: row for row in found["comparison"]["rows"]}
    assert len(rows["vat"]["values"]) == 2
    assert rows["vat"]["difference"]["interval"][0] <= rows["vat"]["difference"]["mean"]
    assert rows["plain"]["difference"] is None
    assert Path(found["report"]).exists()
    assert told(capsys, "report", "r")[1]["report"] == "r/report.html"
    trials = told(capsys, *SWEEP, "radius=0.1,1", "--set", "epochs=1", "--set", "hidden=16", "--cores", "1")[1]["sweep"]
    assert {trial["settings"]["radius"] for trial in trials["trials"]} == {0.1, 1}
    assert "mnist" in told(capsys, "data", "list")[1]["data"]
    assert None in told(capsys, "data", "where", "mnist", "--data", "nowhere")[1]["files"].values()


@pytest.mark.parametrize("name", ["rte", "multi30k"])
def test_a_width_that_no_heads_fit_is_one_sentence(here: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    code, _, err = said(capsys, "run", name, "--set", "width=30", "--set", "epochs=1", "--set", "examples=40")
    assert code == 2
    assert "width=30 does not divide among 4 heads; use a multiple of 4, such as 32" in " ".join(err.split())
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    "arguments", [["run", "sequential-digit"], ["evaluate", "nowhere"], ["comprae"], ["data", "get", "zzz"]]
)
def test_errors_speak_json_too(here: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    code, found, err = told(capsys, *arguments)
    assert found["exit_code"] == code != 0
    assert found["error"]
    assert found["error"].split(";")[0][:20] in err.replace("│", "")


def test_a_device_is_here_or_refused(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from sparring.lab.training.devices import DEVICE, on_processor

    monkeypatch.setenv(DEVICE, "")
    assert said(capsys, *RUN, "--device", "cpu")[0] == 0
    assert os.environ[DEVICE] == "cpu"
    assert on_processor()
    code, _, err = said(capsys, *RUN, "--device", "gpu")
    assert (code, "'gpu' is not known to torch" in err) == (2, True)
    monkeypatch.setattr("torch.accelerator.is_available", lambda: False)
    code, _, err = said(capsys, *RUN, "--device", "cuda")
    assert (code, "--device cuda is not here; auto and cpu are" in err) == (2, True)
    monkeypatch.setattr("torch.accelerator.is_available", lambda: True)
    monkeypatch.setattr("torch.accelerator.current_accelerator", lambda: __import__("torch").device("cuda"))
    monkeypatch.setattr("torch.accelerator.device_count", lambda: 2)
    cli_parse.choose_device("cuda:1")
    assert os.environ[DEVICE] == "cuda:1"
    assert not on_processor()
    with pytest.raises(LabError, match="cuda:2 is not here; auto and cpu and cuda and cuda:0 and cuda:1 are"):
        cli_parse.choose_device("cuda:2")


def test_examples_go_where_the_model_is() -> None:
    """The `meta` device stands in for an accelerator: it takes tensors, and mixing it with the CPU is an error."""
    import torch

    from sparring.lab.registry import task
    from sparring.lab.training.devices import brought

    away = torch.device("meta")
    for name in ("sequential-digits", "text", "few-labels-digits"):
        entry = task(name)
        data = brought(entry.load(entry.setting("plain")), away)
        for split in (data.train, data.validation, data.test):
            inputs, targets = next(iter(split.batches(4)))
            assert {inputs.device, targets.device} == {away}


def test_completion_knows_commands_and_options(monkeypatch: pytest.MonkeyPatch) -> None:
    script = "import sys; from sparring.lab.cli.main import main; sys.exit(main([]))"
    for typed, known in (("sparring comp", "compare"), ("sparring compare --see", "--seeds")):
        words = {"_SPARRING_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, env={**os.environ, **words}
        )
        assert known in done.stdout.split(), done.stderr
