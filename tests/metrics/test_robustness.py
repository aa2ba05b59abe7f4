"""Accuracy under attack: definitions, sweeps and tables."""

import math

import pytest
import torch
from torch import Tensor, nn

import sparring as sp
from sparring.attacks import BIM, FGSM, JSMA, Transfer
from sparring.metrics.robustness import attack_table, robust_accuracy, sweep

X = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.5, 0.3]])
Y = torch.tensor([0, 0, 0, 0])  # the third example is wrong without attack
NET = nn.Identity()


def pixels(radius: float) -> sp.Linf:
    return sp.Linf(radius, box=(0, 1))


def test_plain_and_conditional_by_hand() -> None:
    result = robust_accuracy(NET, FGSM(pixels(0.15)), X, Y)
    # 0.9/0.1 survives, 0.6/0.4 flips (0.45/0.55), 0.2/0.8 was wrong, 0.5/0.3 flips
    assert result.right.tolist() == [True, True, False, True]
    assert result.survived.tolist() == [True, False, False, False]
    assert result.clean == 0.75
    assert result.plain == 0.25
    assert result.conditional == pytest.approx(1 / 3)
    torch.testing.assert_close(result.linf, torch.full((4,), 0.15))
    torch.testing.assert_close(result.l2, torch.tensor([math.hypot(0.15, 0.15)] * 4))


def test_an_attack_that_repairs_an_example_earns_the_model_nothing() -> None:
    def helpful(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.one_hot(targets, 2).float()

    result = robust_accuracy(NET, helpful, X, Y)
    assert result.plain == result.clean == 0.75


def test_batches_do_not_matter() -> None:
    whole, cut = (robust_accuracy(NET, FGSM(pixels(0.15)), X, Y, batch_size=size) for size in (256, 3))
    assert torch.equal(whole.survived, cut.survived)
    assert torch.equal(whole.l2, cut.l2)


def test_no_right_example_gives_no_conditional() -> None:
    assert math.isnan(robust_accuracy(NET, FGSM(pixels(0.1)), X[2:3], Y[2:3]).conditional)


def test_a_sweep_falls_to_zero() -> None:
    curve = sweep(NET, BIM(pixels(0.1)), X, Y, [0.0, 0.05, 0.15, 0.5])
    assert curve.plain == (0.75, 0.75, 0.25, 0.0)
    assert curve.conditional == (1.0, 1.0, pytest.approx(1 / 3), 0.0)
    assert curve.reaches_zero() == 0.5
    assert [row["radius"] for row in curve.rows()] == [0.0, 0.05, 0.15, 0.5]
    assert sweep(NET, BIM(pixels(0.1)), X, Y, [0.0, 0.05]).reaches_zero() is None


def test_a_sweep_scales_given_steps_and_reaches_into_transfers_and_factories() -> None:
    expected = sweep(NET, BIM(pixels(0.1)), X, Y, [0.15]).plain
    assert sweep(NET, lambda radius: BIM(pixels(radius)), X, Y, [0.15]).plain == expected
    assert sweep(NET, Transfer(BIM(pixels(0.01)), NET), X, Y, [0.15]).plain == expected
    assert sweep(NET, BIM(pixels(0.01), step_size=0.005), X, Y, [0.5]).plain == (0.0,)


def test_a_table_of_attacks_reports_progress() -> None:
    said: list[tuple[str, float]] = []
    table = attack_table(
        NET, {"a": FGSM(pixels(0.0)), "b": FGSM(pixels(0.5))}, X, Y, progress=lambda *step: said.append(step)
    )
    assert table["a"].plain == 0.75
    assert table["b"].plain == 0.0
    assert said == [("a", 0.5), ("b", 1.0)]
    assert set(table["b"].to_dict()) == {"clean", "plain", "conditional", "largest_linf", "largest_l2"}


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="inputs hold 4 examples and targets 3"):
        robust_accuracy(NET, FGSM(pixels(0.1)), X, Y[:3])
    for targets in (Y[:, None], nn.functional.one_hot(Y, 4)):  # compared with the answers they would broadcast
        with pytest.raises(ValueError, match=r"inputs hold 4 examples and targets 4, \d; give as many class numbers"):
            robust_accuracy(NET, lambda model, inputs, targets: inputs, X, targets)
    with pytest.raises(TypeError, match="JSMA has no ball to sweep; give a function"):
        sweep(NET, JSMA(), X, Y, [0.1])
    with pytest.raises(ValueError, match="the attack turned inputs"):
        robust_accuracy(NET, lambda model, inputs, targets: inputs[:, :1], X, Y)


def test_running_averages_do_not_move_in_training_mode() -> None:
    net = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout(0.5)).train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    robust_accuracy(net, FGSM(pixels(0.1)), X, Y)
    assert net.training
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
