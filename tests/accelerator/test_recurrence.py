"""The masked recurrence in plain PyTorch on the pretended accelerator: the composite's values, and its launches a time step."""

import pytest
import torch

from accelerator.device import Device, counting
from nn.test_recurrent_kernel import arguments
from sparring.nn.recurrent.composite import composite
from sparring.nn.recurrent.function import recurrence
from sparring.nn.recurrent.steps import Steps

LAUNCHES = {
    "lstm": (9, 9),
    "gru": (8, 7),
    "tanh": (3, 6),
    "relu": (3, 6),
}  # forwards and backwards; Triton needs 2 and 2


@pytest.mark.parametrize("kind", list(LAUNCHES))
def test_values_gradients_and_launches(kind: str, pretend: Device) -> None:
    def run(length: int) -> tuple[int, int]:
        steps, host = Steps.of([2] * length), arguments(kind, [2] * length, 3, 4, torch.float64)
        there = [t.detach().to("pretend").requires_grad_() for t in host]
        expected = composite(kind, steps, *host)[0]
        with counting() as forward:
            found = recurrence(kind, steps, *there)[0]
        truth = torch.autograd.grad(expected.sum(), host, allow_unused=True)
        ones = torch.ones_like(found)
        with counting() as backward:
            ours = torch.autograd.grad(found, there, ones, allow_unused=True)
        torch.testing.assert_close(found.cpu(), expected)
        for a, b in zip(ours, truth, strict=True):
            if b is not None:
                torch.testing.assert_close(a.cpu(), b)
        assert not forward.waits + backward.waits
        return sum(forward.launches.values()), sum(backward.launches.values())

    short, long = run(3), run(7)
    assert tuple((b - a) / 4 for a, b in zip(short, long)) == LAUNCHES[kind]
