"""Every method on the pretended accelerator: the CPU's values, and no more waiting than its budget."""

import pytest
import torch

from accelerator.waiting import BUDGET, CASES, on_both
from methods import Method
from scenes import Scene

SHORT = 2  # scenes of each method in the usual run; the others are long


def _cases() -> list[object]:
    return [
        pytest.param(m, s, id=f"{m.name}-{s.name}", marks=[pytest.mark.long] if m.scenes.index(s.name) >= SHORT else [])
        for m, s in CASES
    ]


ALL = pytest.mark.parametrize(("method", "scene"), _cases())


@ALL
def test_losses_gradients_and_diagnostics_equal_the_cpus(method: Method, scene: Scene) -> None:
    host, device = on_both(method, scene)
    # a difference quotient turns rounding of 1e-16 into 1e-8
    close = (
        {"rtol": 1e-5, "atol": 1e-6}
        if method.name in ("salt-finite", "salt-central")
        else {"rtol": 1e-9, "atol": 1e-12}
    )
    torch.testing.assert_close(device.losses, host.losses, **close)
    torch.testing.assert_close(device.gradients, host.gradients, **close)
    assert device.diagnostics.keys() == host.diagnostics.keys()
    for key, value in host.diagnostics.items():
        assert device.diagnostics[key] == pytest.approx(value, rel=1e-5, abs=1e-9, nan_ok=True), key


@ALL
def test_a_step_waits_no_more_than_its_budget(method: Method, scene: Scene) -> None:
    _, device = on_both(method, scene)
    assert len(device.count.waits) == BUDGET.get(method.name, 0), device.count.waits
