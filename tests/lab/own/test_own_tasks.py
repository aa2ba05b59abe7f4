"""The user's own data and code from the command line: no line of the package is touched, and mistakes cost one sentence."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from sparring.lab import registry
from sparring.lab.cli import main as cli
from sparring.lab.errors import LabError
from sparring.lab.registry import task
from sparring.lab.tasks.own import judge

FAST = ["--set", "epochs=1", "--set", "attacked=10"]
TASK_FILE = Path(__file__).parents[3] / "examples" / "own_task.py"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SPARRING_DATA", raising=False)
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.main(list(arguments))
    seen = capsys.readouterr()
    return code, seen.out, seen.err


def write(path: str, *rows: object) -> None:
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows(rows)


def reviews(path: str = "reviews.csv", count: int = 40) -> None:
    kinds = (("a fine film", "good"), ("a dull film", "bad"))
    write(path, ["text", "label"], *(kinds[k % 2] for k in range(count)))


def records() -> list[dict]:
    return [json.loads(path.read_text()) for path in Path("runs").rglob("data.json")]


def test_text_from_a_csv(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reviews()
    learn = ["--set", "epochs=6", "--set", "lr=0.02", "--set", "batch=8"]
    code, out, err = said(capsys, "run", "text", "--method", "vat", "--set", "train=reviews.csv", *learn)
    assert (code, err) == (0, "")
    assert "data: reviews.csv (utf-8): 28 train, 4 validation, 8 test; classes bad, good" in out
    (record,) = records()
    rows = [record["splits"][part]["rows"] for part in ("train", "validation", "test")]
    assert record["classes"] == {"bad": 20, "good": 20}
    assert sum(record["splits"][part]["count"] for part in record["splits"]) == 40
    assert len(set(rows)) == 3
    result = json.loads(next(Path("runs").rglob("result.json")).read_text())
    assert result["test"]["accuracy"] == 100
    assert {"ece", "macro F1", "worst-case accuracy"} <= set(result["test"])


def test_two_texts_a_file_for_each_split_and_another_language_of_tables(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b", "c"):
        lines = [f"Frage {k % 2};Antwort;{'ja' if k % 2 else 'nein'}" for k in range(12)]
        Path(f"{name}.csv").write_text("frage;antwort;urteil\n" + "\n".join(lines), encoding="cp1252")
    files = ["train=a.csv", "validation=b.csv", "test=c.csv", "text=frage", "text2=antwort", "label=urteil"]
    sets = [part for pair in (*files, "encoding=cp1252", "model=cnn") for part in ("--set", pair)]
    code, out, err = said(capsys, "run", "text", "--method", "attention_at", *sets, *FAST, "--set", "batch=4")
    assert (code, err) == (0, "")
    assert "12 train, 12 validation, 12 test; classes ja, nein" in out


def test_images_in_folders(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    random = np.random.default_rng(0)
    for kind, low in (("dark", 0), ("light", 128)):
        Path("pictures", kind).mkdir(parents=True)
        for k in range(20):
            pixels = random.integers(low, low + 100, (9, 7), dtype=np.uint8)
            Image.fromarray(pixels).save(Path("pictures", kind, f"{k}.png"))
    code, out, err = said(
        capsys, "run", "images", "--method", "adversarial_dropout", "--set", "train=pictures", *FAST, "--set", "batch=8"
    )
    assert (code, err) == (0, "")
    assert "data: pictures: 28 train, 4 validation, 8 test; classes dark, light" in out
    assert records()[0]["pixels"] == [1, 9, 7]


def test_every_class_is_attacked_though_files_lie_class_by_class() -> None:
    setting = task("images").setting("plain", overrides={"attacked": 20})
    targets = torch.arange(4).repeat_interleave(25)
    first_only = torch.nn.Linear(3, 4)
    with torch.no_grad():
        first_only.weight.zero_()
        first_only.bias.copy_(torch.tensor([9.0, 0.0, 0.0, 0.0]))
    assert judge.withstood(first_only, judge.Final(torch.rand(100, 3), targets), setting) == 0.25


def test_a_table_with_words_gaps_and_a_constant(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [[k % 7, "" if k % 5 == 0 else k, ("red", "green")[k % 2], "same", ("no", "yes")[k % 2]] for k in range(40)]
    write("t.csv", ["size", "age", "colour", "unit", "answer"], *rows)
    sets = ["--set", "train=t.csv", "--set", "target=answer", "--set", "batch=8", *FAST]
    assert said(capsys, "run", "table", "--method", "vat", *sets)[0] == 0
    columns = records()[0]["columns"]
    assert columns["colour"] == "2 words"
    assert columns["age"].endswith("with gaps")
    assert columns["size"].startswith("numbers, mean ")
    entry = task("table")
    data = entry.load(entry.setting("plain", overrides={"train": "t.csv", "target": "answer"}))
    assert data.train.inputs.shape == (28, 5)  # size; age and its gaps; red, green; the constant says nothing
    assert float(data.train.inputs[:, 0].mean()) == pytest.approx(0, abs=1e-6)
    assert float(data.train.inputs[:, 0].std(unbiased=False)) == pytest.approx(1, abs=1e-6)


def test_regression_is_scored_in_the_targets_own_unit(here: Path) -> None:
    """An untrained linear model with zero weights predicts the mean: its RMSE is the spread of the test targets."""
    write("t.csv", ["x", "target"], *([k, 1000 + 10 * k] for k in range(50)))
    entry = task("table-regression")
    setting = entry.setting("plain", overrides={"train": "t.csv", "model": "linear"})
    data = entry.load(setting)
    model = entry.build(setting, data)
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    rows = [
        n
        for run in data.record["splits"]["test"]["rows"].split(",")
        for n in range(int(run.split("-")[0]), int(run.split("-")[-1]) + 1)
    ]
    truth = torch.tensor([1000.0 + 10 * (row - 1) for row in rows], dtype=torch.float64)
    mean = data.record["target"]["mean"]
    with torch.no_grad():
        seen = entry.evaluate(model, data.test, setting)
    assert seen["rmse"] == pytest.approx(float((truth - mean).square().mean().sqrt()), rel=1e-5)
    assert seen["mae"] == pytest.approx(float((truth - mean).abs().mean()), rel=1e-5)


def test_other_contents_are_other_runs(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reviews()
    command = ["run", "text", "--set", "train=reviews.csv", *FAST, "--set", "batch=8"]
    assert said(capsys, *command)[0] == 0
    (first,) = Path("runs").rglob("result.json")
    reviews(count=60)
    assert said(capsys, *command)[0] == 0
    assert len(list(Path("runs").rglob("result.json"))) == 2
    code, _, err = said(capsys, "evaluate", str(first.parent))
    assert code == 3
    assert "reviews.csv has changed since this run began" in err
    reviews()
    assert said(capsys, "evaluate", str(first.parent))[0] == 0


MODEL = """
from torch import nn

def build(setting, data):
    return nn.Sequential(nn.Flatten(), nn.Linear(data.train.inputs[0].numel(), len(data.extra["classes"])))

def wrong(setting, data):
    return 1 / 0

def number(setting, data):
    return 5
"""


def test_a_model_of_ones_own(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("net.py").write_text(MODEL)
    assert said(capsys, "run", "images", "--method", "vat", "--set", "model=./net.py:build", *FAST)[0] == 0
    saved = next(Path("runs").rglob("best-*.safetensors"))
    assert saved.stat().st_size < 10 * 64 * 4 + 1000  # one linear layer
    for name, code, words in (
        ("./net.py:wrong", 2, "net.py, line 8: ZeroDivisionError: division by zero"),
        ("./net.py:number", 2, "returned a int; it must return an nn.Module"),
        ("./net.py:absent", 2, "net.py has no 'absent'"),
        ("no_such_module:build", 2, "there is no module 'no_such_module'"),
        ("cn", 2, "did you mean cnn"),
    ):
        got, _, err = said(capsys, "run", "images", "--set", f"model={name}", *FAST)
        assert (got, err.count("\n")) == (code, 1), err
        assert words in err


@pytest.mark.parametrize(
    ("task_name", "content", "sets", "words"),
    [
        ("text", "review,label\na,1\nb,2\n", [], "t.csv: has no column 'text'; it has 'review', 'label': write --set text=NAME"),
        ("text", "text,label\na,1\nb,1\n", [], "t.csv: holds only the label '1'; two classes at least are needed"),
        ("text", "text,label\na,1\nb,2\n", [], "class '1' has 1 example(s), splitting needs 3"),
        ("text", "text,label\n" + "a,1\nb,2\n" * 5 + "c,\n", [], "t.csv, line 12: has no label"),
        ("text", "text,label\n" + "\n".join(f"a,{k}" for k in range(50)), [], "50 different labels in 50 rows"),
        ("text", "text,label\n" + "a,1\nb,2\n" * 5, ["validation=v.csv"], "v.csv, line 2: has the label '9', which no row"),
        ("text", "text,label\ncaf\xe9,1\n", [], "line 2: byte 0xe9 is not utf-8 text"),
        ("text", "text,label\n" + "a,1\nb,2\n" * 5, ["test_share=0.9", "validation_share=0.3"], "leave nothing to train on"),
        ("table", "x,target\n" + "1,a\n2,b\n" * 5, ["ignore=y"], "has no column 'y'; it has 'x', 'target'"),
        ("table", "x,target\n" + "1,a\n1,b\n" * 5, [], "no column is left to learn from"),
        ("table", "x,target\n" + "\n".join(f"w{k},{k % 2}" for k in range(99)), [], "leave it out with --set ignore=x"),
        ("table", "x,target\n" + "\n".join(f"{'oops' if k == 9 else k},{k % 2}" for k in range(99)), [], "holds 'oops' among numbers"),
        ("table-regression", "x,target\n" + "1,2\n2,high\n" * 5, [], "t.csv, line 3: column 'target' holds 'high'; a number is needed"),
        ("table-regression", "x,target\n" + "1,2\n2,2\n" * 5, [], "the target is the same number in every training row"),
        ("images", "image,label\nx.png,1\n", [], "t.csv, line 2: names the image 'x.png', which is not there"),
    ],
)  # fmt: skip
def test_bad_files_cost_one_sentence_and_leave_nothing(
    here: Path, capsys: pytest.CaptureFixture[str], task_name: str, content: str, sets: list[str], words: str
) -> None:
    Path("t.csv").write_text(content, encoding="latin-1")
    Path("v.csv").write_text("text,label\nc,9\n")
    more = [part for pair in ("train=t.csv", *sets) for part in ("--set", pair)]
    for command in (["run", task_name], ["compare", task_name, "--methods", "plain,noise", "--seeds", "2"]):
        code, _, err = said(capsys, *command, *more)
        assert (code, err.count("\n")) == (3, 1), err
        assert words in err
    assert not Path("runs").exists()


def test_images_of_different_sizes_and_an_empty_class(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for kind, size in (("a", 6), ("b", 7)):
        Path("p", kind).mkdir(parents=True)
        for k in range(5):
            Image.new("L", (size, size)).save(Path("p", kind, f"{k}.png"))
    code, _, err = said(capsys, "run", "images", "--set", "train=p")
    assert (code, "has 7 x 7 pixels" in err, "--set size=6" in err) == (3, True, True)
    Path("p", "c").mkdir()
    code, _, err = said(capsys, "run", "images", "--set", "train=p")
    assert (code, "p/c: the class folder holds no image" in err) == (3, True)
    assert not Path("runs").exists()


def test_a_task_of_ones_own(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.py").write_text(TASK_FILE.read_text())
    code, out, err = said(capsys, "compare", "./mine.py", "--methods", "plain,vat", "--seeds", "2", "--cores", "1")
    assert (code, err) == (0, "")
    assert "moons (tiny), test accuracy, higher is better" in out
    assert "own_task" not in Path("runs/report.html").read_text()
    folder = next(Path("runs/moons/tiny").rglob("result.json")).parent
    assert said(capsys, "evaluate", str(folder))[0] == 0
    assert said(capsys, "report", "runs")[0] == 0
    assert "two moons, few examples" in Path("runs/report.html").read_text()
    Path("mine.py").write_text(TASK_FILE.read_text() + "\n# another version\n")
    code, _, err = said(capsys, "evaluate", str(folder))
    assert (code, "has changed since this run began" in err) == (2, True)
    assert said(capsys, "run", "./mine.py")[0] == 0
    assert len({path.parent for path in Path("runs/moons/tiny").glob("plain*/seed-0")}) == 2


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("x = 1\ny = x / 0\n", "mine.py, line 2: ZeroDivisionError: division by zero"),
        ("x = = 1\n", "mine.py, line 1: SyntaxError"),
        ("import no_such_package\n", "mine.py, line 1: ModuleNotFoundError: No module named 'no_such_package'"),
        ("x = 1\n", "mine.py: no Task is in it; write TASK = Task(...)"),
        ("raise SystemExit('bye')\n", "mine.py ends the program (SystemExit: bye)"),
        ("from sparring.lab.registry import task\nTASK = task('sst')\n", "calls its task 'sst', a name that is taken"),
    ],
)
def test_task_files_that_cannot_be_used(
    here: Path, capsys: pytest.CaptureFixture[str], content: str, words: str
) -> None:
    Path("mine.py").write_text(content)
    code, _, err = said(capsys, "run", "./mine.py")
    assert (code, err.count("\n")) == (2, 1), err
    assert words in err
    assert not Path("runs").exists()


def test_faults_inside_a_task_are_told_with_their_line(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = TASK_FILE.read_text()
    Path("mine.py").write_text(
        text.replace(
            "def load(setting: Setting) -> Data:", "def load(setting: Setting) -> Data:\n    raise OSError('gone')", 1
        )
    )
    code, _, err = said(capsys, "run", "./mine.py")
    assert (code, "OSError: gone" in err, "mine.py, line " in err) == (2, True, True)
    assert not Path("runs").exists()
    Path("late.py").write_text(
        text.replace("def evaluate(", "def evaluate(*a):\n    raise KeyError('later')\n\n\ndef unused(", 1)
    )
    code, _, err = said(capsys, "run", "./late.py")
    assert (code, "KeyError: 'later'" in err, "late.py, line " in err) == (2, True, True)
    code, _, err = said(capsys, "run", "./absent.py")
    assert (code, "there is no file ./absent.py" in err) == (2, True)


def test_several_tasks_in_a_file_are_told_apart(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.py").write_text(
        TASK_FILE.read_text() + "\nfrom dataclasses import replace\nTASKS = (TASK, replace(TASK, name='more'))\n"
    )
    with pytest.raises(LabError, match=r"holds the tasks moons, more; name one: mine.py:moons"):
        task("mine.py")
    assert task("mine.py:more").name == "more"
    with pytest.raises(LabError, match="did you mean more"):
        task("mine.py:mor")


class Point:
    name, value = "theirs", "their_package:TASKS"

    def __init__(self, thing: object) -> None:
        self.thing = thing

    def load(self) -> object:
        if isinstance(self.thing, Exception):
            raise self.thing
        return self.thing


def test_tasks_of_other_packages(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    moons = task(str(TASK_FILE))

    def offer(thing: object) -> None:
        registry.tasks.cache_clear()
        registry.plugged.cache_clear()
        monkeypatch.setattr(registry, "entry_points", lambda group: [Point(thing)] if group == "sparring.tasks" else [])

    try:
        offer((moons,))
        assert task("moons") is moons
        offer(ImportError("no such thing"))
        assert "sst" in registry.tasks()
        with pytest.raises(LabError, match=r"'theirs' cannot be loaded .*ImportError: no such thing"):
            task("theirs")
        assert "left out: entry point their_package:TASKS" in said(capsys, "tasks")[1]
        offer([task("sst")])
        assert "a task called 'sst' exists already" in registry.broken_plugins()["theirs"]
        offer(5)
        assert "a task is needed, not a int" in registry.broken_plugins()["theirs"]
    finally:
        monkeypatch.undo()
        registry.tasks.cache_clear()
        registry.plugged.cache_clear()


def test_the_page_shows_the_example_as_it_is() -> None:
    page = (TASK_FILE.parents[1] / "docs" / "own-data.md").read_text()
    assert TASK_FILE.read_text() in page
