"""The pretended accelerator, there for the length of a test."""

from collections.abc import Iterator

import pytest

from accelerator.device import Device, plugged_in


@pytest.fixture
def pretend() -> Iterator[Device]:
    with plugged_in() as device:
        yield device
