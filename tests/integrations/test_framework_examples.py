"""The examples of other frameworks run as their first lines say, on several processes too."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from launching import torchrun

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
pytestmark = pytest.mark.long


def said(command: list[str]) -> str:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def falls(words: str) -> bool:
    """Whether the loss of the last epoch is below that of the first."""
    losses = [float(found) for found in re.findall(r"loss ([0-9.]+)", words)]
    return len(losses) == 3 and losses[-1] < losses[0]


def test_accelerate_on_two_processes() -> None:
    pytest.importorskip("accelerate")
    words = torchrun(EXAMPLES / "with_accelerate.py")
    assert "2 processes, their weights differ by 0.0" in words
    assert falls(words)


def test_a_plain_loop_on_two_processes() -> None:
    words = torchrun(EXAMPLES / "with_ddp.py")
    assert "2 processes, their weights differ by 0.0" in words
    assert falls(words)


def test_lightning_on_two_processes() -> None:
    pytest.importorskip("lightning")
    words = torchrun(EXAMPLES / "with_lightning.py")
    assert words.count("sparring/clean_loss") == 1
    assert float(re.search(r"'sparring/clean_loss': ([0-9.]+)", words)[1]) < 2.0  # chance is 2.3


def test_skorch_searches_a_radius() -> None:
    pytest.importorskip("skorch")
    scores = [
        float(found)
        for found in re.findall(r"accuracy ([0-9.]+)", said([sys.executable, str(EXAMPLES / "with_skorch.py")]))
    ]
    assert len(scores) == 3
    assert min(scores) > 0.6
    assert len(set(scores)) > 1, "the radius made no difference"
