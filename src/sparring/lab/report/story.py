"""What a page tells beside its tables: the questions of a demonstration, each with the figure that answers it.

A folder of runs may hold a `story.json`, a list of chapters. The report then has a section for each of them, in this order,
and the plain tables of whatever else is in the folder after them.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from ..compare import Comparison, Run, compare
from ..runs.files import read_json, write_json
from ..runs.shapes import STORY

FILE = "story.json"


@dataclass(frozen=True)
class Chapter:
    """One question.

    Args:
        task: whose runs answer it.
        question: the title of the section.
        methods: the rows, the one to compare with first.
        score: the figure of the test split that the claim is about.
        better: "higher" or "lower".
        header: what the figure is, in full: unit, how many examples, which radius.
        text: what the reader must know: the data and where it comes from, what a row is.
    """

    task: str
    question: str
    methods: tuple[str, ...]
    score: str
    better: str
    header: str
    text: str

    def comparison(self, runs: Sequence[Run]) -> Comparison | None:
        """The chapter's table; None where none of its runs is there."""
        mine = [run for run in runs if run.config["task"] == self.task and run.config["method"] in self.methods]
        return compare(mine, self.methods[0], self.methods, (self.score, self.better)) if mine else None


def write_story(out: Path, chapters: Sequence[Chapter]) -> None:
    """Put the chapters beside the runs."""
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / FILE, {"chapters": [asdict(chapter) for chapter in chapters]})


def read_story(out: Path) -> list[Chapter]:
    """The chapters of a folder of runs; none where nobody wrote any."""
    if not (out / FILE).exists():
        return []
    told = read_json(out / FILE, STORY)["chapters"]
    names = [field.name for field in fields(Chapter)]
    chapters = [{name: chapter[name] for name in names} for chapter in told]
    return [Chapter(**{**chapter, "methods": tuple(chapter["methods"])}) for chapter in chapters]
