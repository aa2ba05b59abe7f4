"""The report: whole, self-contained, true to the runs; and, in a browser, free of errors at desktop and phone widths."""

import base64
import io
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from markupsafe import escape

from sparring.lab.cli import work as cli_work
from sparring.lab.cli.demonstration import CHANGES, CHAPTERS, do_demo
from sparring.lab.compare import Comparison, Run, compare, jobs, read_runs
from sparring.lab.errors import LabError
from sparring.lab.registry import task
from sparring.lab.report.build import build
from sparring.lab.report.figures import bars, curves, heatmap, histogram, pictures, sentences
from sparring.lab.report.panels import draw, merged, shared_scale
from sparring.lab.report.plots import pooled
from sparring.lab.report.story import Chapter, write_story
from sparring.lab.report.svg import WIDTH, lines, log_ticks, scatter, ticks
from sparring.lab.report.sweeps import Baseline, grouped, sweep_sections
from sparring.lab.report.verdicts import headline
from sparring.lab.runs.files import write_json
from sparring.lab.runs.run import execute
from sparring.lab.sweep import Plan, parse_param, sweep_all

VOID = {"meta", "link", "br", "img", "hr", "input"}


class Balanced(HTMLParser):
    """Fails on tags that do not close, and remembers attributes that fetch something."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.ids: set[str] = set()

    def handle_starttag(self, tag, attributes):
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attributes:
            if name in ("src", "href", "action", "data"):
                self.links.append(value)
            if name == "id":
                self.ids.add(value)

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs")
    short = {"epochs": 2, "hidden": 24}
    entry = task("sequential-digits")
    for job in jobs(entry, ["plain", "vat", "adversarial_dropout"], [0, 1], "tiny", out, None, {**short, "flips": 0.2}):
        execute(job.setting, job.path, "sparring compare <sequential-digits> --seeds 2")

    def do(wanted, cores, **rest):
        for job in wanted:
            execute(job.setting, job.path)
        return {}

    with pytest.MonkeyPatch.context() as during:
        during.setattr(cli_work, "do_jobs", do)
        sweep_all(Plan(entry, "vat", "tiny", [0], dict([parse_param("radius=0.1,1")]), out, None, short), None, 1)
    return out


@pytest.fixture(scope="module")
def page(folder: Path) -> str:
    return build(folder, folder / "report.html").read_text()


def test_the_page_is_whole_and_fetches_nothing(page: str) -> None:
    parser = Balanced()
    parser.feed(page)
    assert parser.open == []
    assert all(link.startswith("#") or link == "data:," for link in parser.links)
    assert {link[1:] for link in parser.links if link.startswith("#")} <= parser.ids
    assert "http://" not in page
    assert "https://" not in page
    assert "@import" not in page
    assert "nan" not in re.sub(r"<title>.*?</title>", "", page).lower()


def test_the_page_says_what_the_runs_say(folder: Path, page: str) -> None:
    runs = [run for run in read_runs(folder) if run.config["overrides"].get("radius") is None]
    table = compare(runs, "plain")
    for row in table.rows:
        assert f">{row.mean:.4g}<" in page
    assert headline(table).split(";")[0].split(",")[0] in page
    assert "sparring compare &lt;sequential-digits&gt; --seeds 2" in page
    for part in (
        "Reliability",
        "Accuracy of sub-networks",
        "Adversarial mask by epoch",
        "error against radius",
        "torch",
    ):
        assert part in page


def swept(method: str, *validation: list[float], changes: str = "epochs=1", seeds: tuple[int, ...] = (0, 1)) -> dict:
    """A sweep over radius 0.1, 1, ... as the file of its summary holds it."""
    trials = [
        {"settings": {"radius": 10.0**place / 10}, "value": sum(found) / len(found), "test": 1.0, "validation": found}
        for place, found in enumerate(validation)
    ]
    listed = ",".join(map(str, seeds))
    return {
        "name": f"sequential-digits tiny {method} [radius] seeds {listed} {changes}".strip(), "task": "sequential-digits",
        "scale": "tiny", "method": method, "score": "error", "better": "lower", "seeds": list(seeds),
        "changes": {k: int(v) if v.isdigit() else v for k, _, v in (c.partition("=") for c in changes.split())},
        "log": {"radius": False}, "trials": trials,
    }  # fmt: skip


def test_sweeps_that_differ_in_their_method_alone_share_a_picture(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "runs")
    for place, changes in enumerate(("epochs=1", "epochs=1 norm=linf")):
        for method, shift in (("smart", 0.0), ("salt", 2.0)):
            found = swept(method, [8.0 + shift, 9.0], [5.0, 6.0 + shift], changes=changes)
            write_json(tmp_path / "runs" / "sweep" / f"{method}{place}.json", found)
    page = build(tmp_path / "runs", tmp_path / "report.html").read_text()
    parser = Balanced()
    parser.feed(page)
    assert parser.open == []
    parts = dict(re.findall(r"<h3>(sequential-digits [^<]*)</h3>(.*?)</table>", page, re.DOTALL))
    fixed = ("epochs=1", "epochs=1 norm=linf")
    assert list(parts) == [
        *(f"sequential-digits (tiny) · salt, smart · {changes}" for changes in fixed),
        "sequential-digits (tiny) · vat · epochs=2 hidden=24",
    ]
    for changes in fixed:
        part = parts[f"sequential-digits (tiny) · salt, smart · {changes}"]
        assert part.count("<svg") == 1
        lines_drawn = dict(re.findall(r'<polyline class="series" points="([^"]*)" stroke="var\((--s\d)\)"', part))
        legend = dict(re.findall(r"background:var\((--s\d)\)\"></span>([^<]*)</li>", part))
        assert sorted(legend.values()) == ["salt", "smart"]
        assert set(lines_drawn.values()) == set(legend), "every line has the colour of its legend"
        assert (
            len(re.findall(r"<circle[^>]*><title>salt: ", part)) == len(re.findall(r"><title>smart: \d+ at", part)) == 4
        )
        assert [re.findall(r"<td>(\w+)</td><td>([\d.]+)</td>", part).count((m, "1.0")) for m in ("salt", "smart")] == [
            1,
            1,
        ]
    alone = parts["sequential-digits (tiny) · vat · epochs=2 hidden=24"]
    assert 'class="legend"' not in alone
    assert "<td>vat</td>" not in alone


def test_what_is_not_comparable_has_a_picture_of_its_own() -> None:
    base = swept("salt", [1.0], [2.0])
    others = {
        "task": base | {"task": "rte"},
        "scale": base | {"scale": "small"},
        "score": base | {"score": "ece"},
        "changes": swept("smart", [1.0], [2.0], changes="epochs=2"),
        "parameter": base | {"log": {"radius": False, "steps": False}},
    }
    for what, other in others.items():
        assert len(grouped([base, other])) == 2, what
    (both,) = grouped([base, swept("smart", [1.0], [2.0], changes="epochs=1", seeds=(0, 1, 2))])
    assert list(both) == ["salt", "smart"]
    (twice,) = grouped([base, swept("salt", [3.0], seeds=(7, 8))])
    assert list(twice) == ["salt (seeds 0, 1)", "salt (seeds 7, 8)"]


def test_the_dots_of_many_methods_stay_inside_the_picture() -> None:
    drawing = scatter({f"m{k}": ([1.0, 2.0], [0.0, 1.0]) for k in range(9)}, "radius", "error")
    places = [float(x) for x in re.findall(r'<circle cx="([\d.]+)"', drawing)]
    assert len(set(places)) == 18
    assert max(places) + 4 <= WIDTH


def test_a_sweep_from_zero_has_no_logarithmic_axis() -> None:
    """Another method's range may be logarithmic, but zero has no logarithm."""
    spread, zero = swept("salt", [1.0], [2.0]), swept("smart", [1.0], [2.0])
    spread["log"] = {"radius": True}
    zero["trials"][0]["settings"]["radius"] = 0.0
    (section,) = sweep_sections([spread, zero], [], 8)
    (chart,) = section["charts"]
    assert ">0</text>" in chart["drawing"]


def test_a_headline_never_claims_more_than_the_interval(folder: Path) -> None:
    runs = [run for run in read_runs(folder) if run.seed == 0 and "radius" not in run.config["overrides"]]
    text = headline(compare(runs, "plain"))
    assert "better" not in text
    assert "One seed says nothing about chance" in text


def test_half_pages_of_killed_processes_go_and_those_at_work_stay(folder: Path, tmp_path: Path) -> None:
    old, young = tmp_path / ".report.html.11.tmp", tmp_path / ".report.html.12.tmp"
    other = tmp_path / ".index.html.13.tmp"
    for file in (old, young, other):
        file.write_text("<html>")
    for file in (old, other):
        os.utime(file, (0, 0))
    build(folder, tmp_path / "report.html")
    assert [file.exists() for file in (old, young, other)] == [False, True, True]


def test_an_empty_folder_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="no finished run"):
        build(tmp_path, tmp_path / "report.html")


def test_all_kinds_are_drawn() -> None:
    colours = {"m": 2, "n": 3}
    made = [
        histogram("h", "x", {"a": [1.0, 2.0, 2.0]}),
        heatmap("h", "x", "y", [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]),
        bars("b", "keep", {"layer <1>": [0.1, 0.9]}),
        sentences("s", [{"words": ["<b>", "good"], "weights": [0.2, 0.8], "label": "positive"}]),
        pictures("p", {"<b>": torch.tensor([[0, -1], [1, 12]]), "u": torch.rand(2, 2)}, ["<b>", "road"], 1.0),
    ]
    for figure in made:
        drawing = str(draw("m", figure, colours)["drawing"])
        parser = Balanced()
        parser.feed(drawing)
        assert parser.open == []
        assert "<b>" not in drawing
    both = [
        ("m", curves("c", "e", [0, 1], "a", {"m": [1, 0]}, "masked")),
        ("n", curves("c", "e", [0, 2], "a", {"n": [1, 1]})),
    ]
    chart = merged(both, colours)
    assert chart["note"] == "m: masked"
    assert [name for name, _ in chart["legend"]] == ["m", "n"]


def test_a_picture_shows_every_pixel_in_its_own_colour() -> None:
    image = pytest.importorskip("PIL.Image", reason="the lab extra is not installed")
    photograph = torch.randint(0, 256, (3, 4, 5), dtype=torch.uint8)
    classes = torch.tensor([[0, 1, 10, 11, -1]] * 4)
    figure = pictures("p", {"a": photograph, "b": classes, "c": torch.linspace(0, 2, 20).reshape(4, 5)}, ["x"], 2.0)
    drawing = str(draw("m", figure, {"m": 0})["drawing"])
    found = [
        np.array(image.open(io.BytesIO(base64.b64decode(raw))))
        for raw in re.findall(r"data:image/png;base64,([^\"]*)", drawing)
    ]
    assert [picture.shape for picture in found] == [(4, 5, 3)] * 3
    assert np.array_equal(found[0], photograph.permute(1, 2, 0).numpy())
    assert len({tuple(colour) for colour in found[1][0].tolist()}) == 5
    assert found[1][:, 4].max() == 0  # what has no class is black
    brightness = found[2].astype(int).sum(-1).ravel()
    assert brightness[0] == 3 * 255
    assert (np.diff(brightness) < 0).all()


def test_axes_are_round_numbers_inside_the_range() -> None:
    assert ticks(0.13, 0.87) == [0.2, 0.4, 0.6, 0.8]
    assert log_ticks(0.1, 10.0) == pytest.approx([0.1, 0.2, 0.5, 1, 2, 5, 10])
    assert ticks(3.0, 3.0) == [3.0]
    assert pooled([[1.0], [3.0], [5.0]], 2) == [[2.0], [5.0]]


@pytest.mark.browser
@pytest.mark.parametrize(("width", "height"), [(1280, 1600), (390, 1600)])
def test_a_browser_shows_it_without_errors(folder: Path, page: str, tmp_path: Path, width: int, height: int) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.fail("no chromium: apt-get install chromium")
    # The page says how wide it became and what went wrong; a second script, because the report itself stays silent.
    probe = """<script>
      var wrong = []; addEventListener("error", function (e) { wrong.push(e.message); });
      addEventListener("securitypolicyviolation", function (e) { wrong.push(e.violatedDirective); });
      addEventListener("load", function () {
        var root = document.documentElement, seen = root.dataset.theme;
        document.getElementById("theme").click();
        document.title = JSON.stringify([root.scrollWidth, root.clientWidth, seen !== root.dataset.theme, wrong]);
        document.getElementById("theme").click();
      });</script></head>"""
    copy = tmp_path / "report.html"
    copy.write_text(page.replace("</head>", probe, 1))
    flags = [
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--enable-logging=stderr",
        f"--window-size={width},{height}",
    ]
    seen = subprocess.run([*flags, "--dump-dom", copy.as_uri()], capture_output=True, text=True, timeout=120)
    assert "CONSOLE" not in seen.stderr
    scroll, client, switched, wrong = __import__("json").loads(
        re.search(r"<title>(\[.*?\])</title>", seen.stdout).group(1)
    )
    assert scroll <= client, "the page scrolls sideways"
    assert switched
    assert wrong == []
    shot = tmp_path / "report.png"
    subprocess.run([*flags, f"--screenshot={shot}", copy.as_uri()], capture_output=True, timeout=120)
    from PIL import Image

    picture = Image.open(shot)
    assert picture.width >= width
    assert len(picture.convert("RGB").getcolors(1 << 20)) > 50  # not blank


def test_long_names_are_shown_in_full_beside_their_differences() -> None:
    from sparring.lab.report.plots import differences

    for name in ("salt", "adversarial_dropout (epochs=2, radius=0.1)"):
        drawn = differences([(name, 0.5, (-1.0, 2.0), 1, "no clear difference")], "difference in error")
        assert f">{name}</text>" in drawn
        assert ('text-anchor="end">' + name in drawn) == (name == "salt"), "a long name would leave the picture"


def faked(method: str, seed: int, **figures: float) -> Run:
    """A finished run as a folder would hold it."""
    config = {"task": "made", "scale": "tiny", "method": method, "seed": seed, "overrides": {}, "values": {}}
    result = {
        "score": "accuracy", "better": "higher", "test": figures, "validation": figures, "seconds_per_step": 1.0,
        "passes_per_step": 2.0, "epochs": 0,
    }  # fmt: skip
    return Run(Path("out") / method / f"seed-{seed}", config, result, {"command": "made up"})


def table_of(gains: dict[str, list[float]], **by: tuple[str, str]) -> Comparison:
    runs = [faked("plain", seed, accuracy=50.0 + seed, ece=9.0) for seed in range(5)]
    runs += [
        faked(name, seed, accuracy=50.0 + seed + gain, ece=9.0 - gain)
        for name, found in gains.items()
        for seed, gain in enumerate(found)
    ]
    return compare(runs, "plain", ("plain", *gains), **by)


def test_holm_is_statsmodels_by_hand() -> None:
    """The k-th smallest of m p-values is compared with 5 % / (m - k + 1), and the first that fails ends it."""
    gains = {"a": [3, 3.2, 2.9, 3.1, 3.3], "b": [1, -0.4, 0.9, 0.7, 1.5], "c": [0.1, -0.1, 0.2, -0.2, 0.1]}
    rows = {row.label: row.difference for row in table_of(gains).rows if row.difference}
    order = sorted(rows, key=lambda name: rows[name].p_value)
    standing = True
    for rank, name in enumerate(order):
        standing = standing and rows[name].p_value < 0.05 / (len(order) - rank)
        assert rows[name].clear == standing
    assert rows["a"].clear
    assert 0.025 < rows["b"].p_value < 0.05 or not rows["b"].clear


def test_a_headline_is_true_to_the_table() -> None:
    text = headline(
        table_of({"up": [3, 3.2, 2.9, 3.1, 3.3], "down": [-3, -3.2, -2.9, -3.1, -3.3], "same": [1, -1, 1, -1, 0]})
    )
    assert text.startswith(
        "Better than plain (52): up (55.1); worse than plain (52): down (48.9); no clear difference: same."
    )
    assert "5 paired seeds, Holm's correction" in text
    turned = headline(table_of({"up": [3, 3.2, 2.9, 3.1, 3.3]}, by=("ece", "lower")))
    assert turned.startswith("Better than plain (9): up (5.9)")
    assert headline(table_of({"same": [1, -1, 1, -1, 0]})).startswith("No clear difference to plain (52): same")


def test_a_headline_counts_the_seeds_that_are_paired() -> None:
    def run(method: str, seed: int, accuracy: float) -> Run:
        config = {"task": "t", "scale": "tiny", "method": method, "seed": seed, "overrides": {}}
        result = {"score": "accuracy", "better": "higher", "test": {"accuracy": accuracy}}
        return Run(Path(method) / f"seed-{seed}", config, {**result, "seconds_per_step": 1.0, "passes_per_step": 2.0})

    runs = [*(run("plain", seed, 50 + seed) for seed in range(2)), *(run("up", seed, 60 - seed) for seed in range(6))]
    assert "2 paired seeds" in headline(compare(runs, "plain"))


def test_heat_maps_side_by_side_share_a_scale() -> None:
    weak, strong = heatmap("m", "x", "y", [[0.0, 0.1]]), heatmap("m", "x", "y", [[0.0, 1.0]])
    scale = shared_scale("heatmap", [weak, strong])
    assert scale == (0.0, 1.0)
    first, second = (draw("m", figure, {"m": 1}, scale)["drawing"] for figure in (weak, strong))
    assert 'fill-opacity="0.10"' in first
    assert 'fill-opacity="1.00"' in second
    assert "light 0, dark 1" in first
    pale = sentences("s", [{"words": ["a"], "weights": [0.2]}])
    dark = sentences("s", [{"words": ["a"], "weights": [0.8]}])
    shown = draw("m", pale, {"m": 1}, shared_scale("sentences", [pale, dark]))["drawing"]
    assert "--w:25%" in shown
    assert shared_scale("bars", []) is None


def test_a_story_asks_its_questions_in_order(folder: Path, tmp_path: Path) -> None:
    chapter = Chapter(
        "sequential-digits", "Is it calibrated?", ("vat", "plain"), "ece", "lower", "ECE in %, 500 digits", "Digits."
    )
    write_story(folder, [chapter])
    try:
        page = build(folder, tmp_path / "story.html").read_text()
    finally:
        (folder / "story.json").unlink()
    assert "Is it calibrated?" in page
    assert "ECE in %, 500 digits" in page
    assert '<th class="num">ece (%) ↓</th>' in page
    parser = Balanced()
    parser.feed(page)
    assert {link[1:] for link in parser.links if link.startswith("#")} <= parser.ids


@pytest.mark.long
def test_the_demo_answers_every_question(tmp_path: Path) -> None:
    failures = do_demo(tmp_path, 2, [0, 1])
    assert not failures
    page = build(tmp_path, tmp_path / "report.html").read_text()
    for chapter in CHAPTERS:
        assert chapter.question in page
        assert escape(chapter.header) in page


def test_the_demo_names_methods_and_settings_that_exist() -> None:
    for chapter in CHAPTERS:
        changes = CHANGES.get(chapter.task, {})
        named = jobs(task(chapter.task), chapter.methods, [0], "tiny", Path("nowhere"), None, changes)
        assert len(named) == len(chapter.methods)


@pytest.mark.parametrize(
    ("xs", "marks"), [((1.0, 2.0, 3.0), ["1", "2", "3"]), ((0.5, 1.0), ["0.5", "0.6", "0.7", "0.8", "0.9", "1"])]
)
def test_no_epoch_lies_between_two(xs: tuple[float, ...], marks: list[str]) -> None:
    drawing = lines({"plain": (xs, [0.5] * len(xs))}, "epoch", "loss", {})
    assert re.findall(r'class="tick"[^>]*middle">([^<]*)<', drawing) == marks


def test_a_sweep_is_compared_with_a_baseline_of_the_same_settings_alone() -> None:
    values = {"epochs": 10, "lr": 0.1}  # the baseline knows no norm
    long = Baseline("sequential-digits", "tiny", 3.0, values, {})
    short = Baseline("sequential-digits", "tiny", 9.0, values, {"epochs": 1})
    elsewhere = Baseline("smnist", "tiny", 5.0, values, {"epochs": 1})
    once, linf, plain = (swept("salt", [8.0, 9.0], changes=c) for c in ("epochs=1", "epochs=1 norm=linf", ""))
    assert [base.suits(once) for base in (long, short, elsewhere)] == [False, True, False]
    assert [base.suits(linf) for base in (long, short, elsewhere)] == [False, True, False]
    assert [base.suits(plain) for base in (long, short, elsewhere)] == [True, False, False]
    typed = {**once, "changes": {"epochs": 1, "encoder": "/a folder/b"}}  # whatever stands in the heading
    assert Baseline("sequential-digits", "tiny", 9.0, {**values, "encoder": ""}, dict(typed["changes"])).suits(typed)
    drawn = {}
    for name, bases in {"none": [], "other": [long], "same": [long, short]}.items():
        (section,) = sweep_sections([once], bases, 8)
        drawn[name] = str(section["charts"])
    assert drawn["none"] == drawn["other"]
    assert "baseline" in drawn["same"]
    assert "baseline" not in drawn["none"]
