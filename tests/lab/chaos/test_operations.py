"""Kills and full disks at every file operation of a run: it ends in the same files whatever happened on the way."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
Meet = Callable[..., dict[str, Any]]
DIGITS = {"epochs": 1, "batch": 500, "hidden": 8}
FAMILIES: list[tuple[str, str, dict[str, Any]]] = [  # one method of each family, two or three updates long
    ("sequential-digits", "plain", DIGITS),
    ("sequential-digits", "adversarial_dropout", {**DIGITS, "hidden": 32}),
    ("sequential-digits", "salt", DIGITS),
    ("few-labels-digits", "vat", {"epochs": 1, "epoch_batches": 2, "hidden": 8}),
    ("sst", "attention_at", {"epochs": 1, "batch": 32, "examples": 64}),
    ("rte", "smart", {"epochs": 1, "batch": 16, "examples": 64, "width": 16}),
    ("rte", "free_lb", {"epochs": 1, "batch": 16, "examples": 64, "width": 16}),
    ("digits-ensemble", "lpd", {"epochs": 1, "batch": 600, "attacked": 5, "swept": 5, "margin_steps": 2, "width": 8}),
    ("dropout-images", "lbd", {"epochs": 1, "batch": 640, "samples": 2}),
    ("movielens", "sivae-bernoulli", {"epochs": 1, "batch": 80}),
    (
        "imdb",
        "vat",
        {"epochs": 1, "epoch_batches": 2, "labelled": 32, "unlabelled": 8, "held": 16, "tested": 16},
    ),  # a stage comes first, in a folder of its own
]


@pytest.fixture(scope="session")
def meet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Meet]:
    """Asks what became of a run that met `modes` at every so many-th file operation."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("no C compiler here: file operations cannot be intercepted")
    made = tmp_path_factory.mktemp("shim") / "shim.so"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", made, HERE / "shim.c", "-ldl"], check=True)
    environment = {**os.environ, "LD_PRELOAD": str(made), "OMP_NUM_THREADS": "1"}
    command, pipe = [sys.executable, str(HERE / "operations.py")], subprocess.PIPE
    with subprocess.Popen(command, env=environment, text=True, stdin=pipe, stdout=pipe) as runner:

        def ask(name: str, method: str, overrides: dict[str, Any], modes: list[str], every: int = 1) -> dict[str, Any]:
            asked = {"task": name, "method": method, "overrides": overrides, "modes": modes, "every": every}
            print(json.dumps(asked), file=runner.stdin, flush=True)
            found: dict[str, Any] = json.loads(runner.stdout.readline())
            print(json.dumps({"task": name, "method": method, "modes": modes, **found}))
            return found

        yield ask


def test_a_sample_of_all_operations(meet: Meet) -> None:
    found = meet(*FAMILIES[0], ["after", "full"], every=13)
    assert found["identical"] == found["done"] > 10, found["wrong"]


@pytest.mark.long
@pytest.mark.chaos
@pytest.mark.parametrize(("name", "method", "overrides"), FAMILIES, ids=[f"{name}-{how}" for name, how, _ in FAMILIES])
def test_every_operation(meet: Meet, name: str, method: str, overrides: dict[str, Any]) -> None:
    found = meet(name, method, overrides, ["after", "half", "full"])
    assert found["identical"] == found["done"] > 2 * found["operations"] > 140, found["wrong"]
    assert found["states"] > found["operations"] / 4
