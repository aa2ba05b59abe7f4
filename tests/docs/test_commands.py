"""Commands on the pages name tasks, methods, scales and settings that exist."""

import re
import shlex
from pathlib import Path

import pytest

from sparring.lab.registry import tasks
from sparring.lab.task import DEFAULTS

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMAND = re.compile(r"sparring (?:run|compare|sweep) [a-z][\w-]+ (?:\\\n|[^`\n#&\\])*")


def _commands() -> list[object]:
    found = []
    for page in PAGES:
        for text in COMMAND.findall(page.read_text()):
            words = shlex.split(text.replace("\\\n", " "))
            if words[2] in tasks() or any(w.startswith("--") for w in words):
                found.append(pytest.param(words, id=f"{page.stem}: {' '.join(words)[:60]}"))
    return found


def _given(words: list[str], *options: str) -> list[str]:
    return [words[i + 1] for i, word in enumerate(words[:-1]) if word in options]


@pytest.mark.parametrize("words", _commands())
def test_a_command_names_what_there_is(words: list[str]) -> None:
    task = tasks()[words[2]]
    methods = {method.name: method for method in task.methods}
    chosen = [name for group in _given(words, "--method", "--methods") for name in group.split(",")]
    assert {name for name in chosen if not name.isupper()} <= set(methods)  # METHOD stands for any
    assert set(_given(words, "--scale")) <= set(task.scales)
    own = {key for scale in task.scales.values() for key in scale} | {
        key for m in methods.values() for key in m.settings
    }
    settings = {pair.partition("=")[0] for pair in _given(words, "--set", "--param")}
    assert settings <= own | set(DEFAULTS)
