"""Kills and full disks at every file operation of a run: it ends in the same files whatever happened on the way."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sparring.lab.registry import task

HERE = Path(__file__).parent
FAMILIES = [  # one method of each family
    ("sequential-digits", "plain"),
    ("sequential-digits", "adversarial_dropout"),
    ("sequential-digits", "salt"),
    ("sst", "attention_at"),
    ("rte", "smart"),
    ("digits-ensemble", "lpd"),
    ("dropout-images", "lbd"),
    ("movielens", "sivae-bernoulli"),
]
SHORT = {
    "epochs": 1,
    "examples": 64,
    "batch": 32,
    "attacked": 5,
    "swept": 5,
    "margin_steps": 2,
    "samples": 2,
    "width": 16,
}


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("no C compiler here: file operations cannot be intercepted")
    made = tmp_path_factory.mktemp("shim") / "shim.so"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", made, HERE / "shim.c", "-ldl"], check=True)
    return made


def meet(shim: Path, name: str, method: str, modes: list[str], every: int = 1) -> dict[str, Any]:
    """What became of a run that met `modes` at every so many-th file operation."""
    known = task(name).setting(method).values
    short = {**SHORT, **({"batch": 500} if name == "sequential-digits" else {})}
    changes = {key: value for key, value in short.items() if known.get(key)}
    if name == "sequential-digits":
        changes["hidden"] = 32 if method == "adversarial_dropout" else 8
    asked = {"task": name, "method": method, "overrides": changes, "modes": modes, "every": every}
    environment = {**os.environ, "LD_PRELOAD": str(shim), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE / "operations.py"), json.dumps(asked)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    print(json.dumps({"task": name, "method": method, "modes": modes, **found}))
    return found


def test_a_sample_of_all_operations(shim: Path) -> None:
    found = meet(shim, "sequential-digits", "plain", ["after", "full"], every=13)
    assert found["identical"] == found["done"] > 10, found["wrong"]


@pytest.mark.long
@pytest.mark.chaos
@pytest.mark.parametrize(("name", "method"), FAMILIES)
@pytest.mark.parametrize("modes", [["before", "after"], ["half"], ["full"]], ids="-".join)
def test_every_operation(shim: Path, name: str, method: str, modes: list[str]) -> None:
    found = meet(shim, name, method, modes)
    assert found["identical"] == found["done"] >= found["operations"] > 50, found["wrong"]
