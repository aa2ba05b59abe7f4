"""Temperature scaling against SciPy's minimiser, and what it must not change."""

import pytest
import torch
from scipy.optimize import minimize_scalar
from torch.nn import functional as F

from sparring.metrics import expected_calibration_error, fit_temperature


def sample(scale: float, n: int = 2000, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits `scale` times as sharp as the distribution the answers come from."""
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(n, 5, generator=generator, dtype=torch.float64) * 1.5
    return scale * z, torch.multinomial(z.softmax(1), 1, generator=generator)[:, 0]


@pytest.mark.parametrize("scale", [0.3, 1.0, 4.0])
def test_the_temperature_is_the_minimisers_and_undoes_the_scale(scale: float) -> None:
    z, y = sample(scale)
    found = fit_temperature(z, y)
    best = minimize_scalar(
        lambda t: float(F.cross_entropy(z / t, y)), bounds=(0.01, 100), method="bounded", options={"xatol": 1e-9}
    )
    assert found == pytest.approx(best.x, rel=1e-4)
    assert found == pytest.approx(scale, rel=0.1)


def test_it_calibrates_data_it_was_not_fitted_on_and_keeps_the_answers() -> None:
    (z, y), (other, answers) = sample(3.0), sample(3.0, seed=1)
    temperature = fit_temperature(z, y)
    before, after = other.softmax(1), (other / temperature).softmax(1)
    assert torch.equal(before.argmax(1), after.argmax(1))
    assert expected_calibration_error(after, answers) < 0.03 < 0.15 < expected_calibration_error(before, answers)


def test_the_ends_of_the_range() -> None:
    z = torch.tensor([[2.0, 0.0], [0.0, 2.0]])
    assert fit_temperature(z, torch.tensor([0, 1])) == pytest.approx(0.01)
    assert fit_temperature(z, torch.tensor([1, 0])) == pytest.approx(100, rel=1e-3)


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match=r"logits \(3,\)"):
        fit_temperature(torch.zeros(3), torch.zeros(3, dtype=torch.long))
    with pytest.raises(ValueError, match="not finite"):
        fit_temperature(torch.tensor([[float("nan"), 0.0]]), torch.tensor([0]))
    with pytest.raises(ValueError, match="lowest=0"):
        fit_temperature(torch.zeros(1, 2), torch.tensor([0]), lowest=0)
