"""Mutated inputs for every reader and every saved file: nothing uncaught, nothing slow, nothing big."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from data_samples import SAMPLES

SAVED = ["config.json", "environment.json", "files.json", "metrics.jsonl", "result.json", "figures.json", "sweep.json",
         "state.json", "state-", "best-"]  # fmt: skip
COUNT = int(os.environ.get("SPARRING_FUZZ", "10000"))


def fuzzed(kind: str, name: str, count: int) -> dict[str, Any]:
    seed = os.environ.get("SPARRING_FUZZ_SEED", "0")
    line = [sys.executable, str(Path(__file__).with_name("fuzz.py")), kind, name, str(count), seed]
    done = subprocess.run(line, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    print(json.dumps({"kind": kind, **{key: value for key, value in found.items() if key != "first"}}))
    return found


def check(found: dict[str, Any]) -> None:
    assert found["faults"] == 0, found["first"]
    assert found["memory_mb"] < 1024


@pytest.mark.long
@pytest.mark.chaos
@pytest.mark.parametrize("name", [*SAMPLES, "pickle"])
def test_readers_read_or_refuse(name: str) -> None:
    check(fuzzed("pickle" if name == "pickle" else "reader", name, COUNT))


@pytest.mark.long
@pytest.mark.chaos
@pytest.mark.parametrize("name", SAVED)
def test_saved_files_are_what_was_saved_or_refused(name: str) -> None:
    check(fuzzed("saved", name, COUNT))
