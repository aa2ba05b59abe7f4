"""The page of claims is what the records say; theorems name tests that exist."""

import re
from pathlib import Path

from sparring.lab.studies.library import studies
from sparring.lab.studies.page import pages
from sparring.lab.studies.theorems import THEOREMS

ROOT = Path(__file__).resolve().parents[3]


def test_the_page_is_up_to_date() -> None:
    for name, text in pages(ROOT / "studies", ROOT / "docs").items():
        path = ROOT / "docs" / name
        there = path.read_text() if path.exists() else ""
        assert there == text, f"docs/{name} is old: run `sparring study docs`"


def test_every_theorem_has_its_test() -> None:
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    for theorem in THEOREMS:
        assert re.search(rf"^def {theorem.test}\(", tests, re.M), theorem.test


def test_pages_of_papers_name_studies_that_exist() -> None:
    named = set()
    for page in (ROOT / "docs" / "papers").glob("*.md"):
        for line in re.findall(r"tested in the open\]\([^)]*\): stud(?:y|ies) (.*?)\.\n", page.read_text(), re.S):
            named |= set(re.findall(r"`([^`]+)`", line))
    assert len(named) > 10
    assert named <= set(studies())
