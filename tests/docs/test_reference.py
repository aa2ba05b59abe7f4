"""The reference shows every public name of every room, and no other."""

import re
from importlib import import_module
from pathlib import Path

import pytest

import sparring as sp

PAGES = sorted((Path(__file__).resolve().parents[2] / "docs" / "reference").glob("*.md"))
SHOWN = [name for page in PAGES for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)]
ROOMS = (
    "objective",
    "terms",
    "sites",
    "players",
    "balls",
    "penalties",
    "losses",
    "recipes",
    "nn",
    "estimators",
    "ensembles",
    "attacks",
    "metrics",
    "predict",
    "passes",
    "integrations.transformers",
    "integrations.lightning",
)


@pytest.mark.parametrize("room", ROOMS)
def test_the_reference_shows_what_a_room_exports(room: str) -> None:
    prefix = f"sparring.{room}."
    shown = [name.removeprefix(prefix) for name in SHOWN if name.startswith(prefix)]
    assert sorted(shown) == sorted(import_module(f"sparring.{room}").__all__)


def test_the_reference_shows_nothing_else() -> None:
    assert {name.rpartition(".")[0] for name in SHOWN} == {f"sparring.{room}" for room in ROOMS}


def test_every_public_name_of_the_package_is_shown_with_its_room() -> None:
    rooms = {room for room in ROOMS if room in sp.__all__} - {"predict"}
    assert set(sp.__all__) - rooms <= {name.rpartition(".")[2] for name in SHOWN}
