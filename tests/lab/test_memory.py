"""Does freed memory stay with a process that trains?"""

import subprocess
import sys

import pytest

from sparring.lab.training.memory import keep_memory

FAULTS = """
import resource, sys
import torch
from sparring.lab.training.memory import keep_memory

if sys.argv[1] == "kept":
    assert keep_memory()


def step():
    return [torch.zeros(1 << 20) for _ in range(10)]  # blocks of 4 MiB, as activations are


step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="pages are counted on Linux only")
def test_steps_that_repeat_get_no_new_pages() -> None:
    """20 steps of 40 MiB: the system hands out 205,000 pages of 4 KiB anew, or next to none."""
    kept = faults("kept")
    assert kept < 2_000
    assert faults("returned") > 10 * kept


def test_a_library_that_cannot_be_told_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())
    assert keep_memory() is False
