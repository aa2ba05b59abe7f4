"""One thread, no leftovers between tests, real data found through SPARRING_DATA."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

# Some virtual machines announce AMX and end the process at its first instruction (any bfloat16 nn.Linear with 32 outputs).
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

import pytest
import torch
from hypothesis import settings

import sparring as sp
from sparring.passes import tape
from sparring.passes.step import Step

sys.path.insert(0, str(Path(__file__).parent))
settings.register_profile("calm", deadline=None, max_examples=30, derandomize=True)
settings.load_profile("calm")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a job in the background: what tests interrupt would run on
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _calm() -> Iterator[None]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    assert torch.get_default_dtype() == torch.float32, "a test changed the default dtype"
    assert torch.backends.cuda.flash_sdp_enabled(), "a test left the fused attention kernel switched off"


@pytest.fixture(autouse=True)
def _replayed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The networks of the tests are too small for replay to be worth its while: here they are replayed all the same."""
    if "as_installed" not in request.fixturenames:
        monkeypatch.setattr(tape, "FIXED", 0.0)
        monkeypatch.setattr(tape, "EACH", 0.0)


@pytest.fixture
def as_installed() -> None:
    """Whether a prefix is replayed is left to its size."""


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of real data sets; tests that need it skip, saying so, where it is absent."""
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("SPARRING_DATA", default))
    if not folder.is_dir():
        pytest.skip("no real data: set SPARRING_DATA to a folder that holds it")
    return folder


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[Step]:
    """The steps that objectives finish during a test, with all that was placed and seen; objectives keep none of it."""
    seen: list[Step] = []
    finish = sp.Objective._finish

    def spy(self: sp.Objective, step: Step, total: torch.Tensor) -> None:
        seen.append(step)
        finish(self, step, total)

    monkeypatch.setattr(sp.Objective, "_finish", spy)
    return seen
