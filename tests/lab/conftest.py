"""Workers of a pool begin with everything imported; commands that tests start on their own still begin from nothing."""

import pytest

from forked import PROCESSES


@pytest.fixture(autouse=True)
def _quick_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparring.lab.pool.PROCESSES", PROCESSES)
