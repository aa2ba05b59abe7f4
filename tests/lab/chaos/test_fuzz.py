"""Mutated inputs for every reader and every saved file: nothing uncaught, nothing slow, nothing big."""

import json
import os
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest
from fuzz import READERS, SAVED, STORAGES, fuzz

from forked import PROCESSES

COUNT = int(os.environ.get("SPARRING_FUZZ", "10000"))


def check(kind: str, name: str, count: int = COUNT) -> None:
    with ProcessPoolExecutor(1, PROCESSES) as pool:  # of its own: memory is counted
        found: dict[str, Any] = pool.submit(
            fuzz, kind, name, count, int(os.environ.get("SPARRING_FUZZ_SEED", "0"))
        ).result()
    print(json.dumps({"kind": kind, **{key: value for key, value in found.items() if key != "first"}}))
    assert found["faults"] == 0, found["first"]
    assert found["memory_mb"] < 1024


@pytest.mark.parametrize("name", ["netflix", "own-images", "tiny-imagenet", "story.json", "records.jsonl", "journal"])
def test_a_few_inputs(name: str) -> None:
    check("reader" if name in READERS else "saved", name, 50)


@pytest.mark.long
@pytest.mark.chaos
@pytest.mark.parametrize("name", [*READERS, "pickle"])
def test_readers_read_or_refuse(name: str) -> None:
    check("pickle" if name == "pickle" else "reader", name)


@pytest.mark.long
@pytest.mark.chaos
@pytest.mark.parametrize("name", SAVED)
def test_saved_files_are_what_was_saved_or_refused(name: str) -> None:
    check("saved", name)


@pytest.mark.long
@pytest.mark.chaos
@pytest.mark.parametrize("name", STORAGES)
def test_storages_of_sweeps_are_read_or_refused(name: str) -> None:
    check("saved", name)
