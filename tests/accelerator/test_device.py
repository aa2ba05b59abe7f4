"""The pretended accelerator itself: is it strict enough to find what a real one would?"""

import pytest
import torch
from torch import nn

from accelerator.device import Device, counting


def test_it_is_an_accelerator_while_it_is_plugged_in(pretend: Device) -> None:
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator() == torch.device("pretend")
    assert torch.ones(2, device="pretend").device == torch.device("pretend", 0)
    pretend.plugged = False
    assert not torch.accelerator.is_available()


def test_kernels_refuse_two_devices_but_take_numbers(pretend: Device) -> None:
    x = torch.ones(2, device="pretend")
    with pytest.raises(RuntimeError, match="same device"):
        x + torch.ones(2)
    with pytest.raises(RuntimeError, match="same device"):
        torch.cat([x, torch.ones(2)])
    with pytest.raises(RuntimeError, match="same device"):
        nn.Linear(2, 1)(x)
    assert (x + torch.tensor(1.0)).tolist() == [2, 2]


def test_views_share_memory_and_autograd_sees_through_them(pretend: Device) -> None:
    x = torch.ones(3, 4, device="pretend", requires_grad=True)
    y = x * 2
    y[:, 1:3].t().mul_(5)
    assert y._version > 0
    (y * y).sum().backward()
    expected = torch.full((3, 4), 8.0)
    expected[:, 1:3] = 200.0
    assert torch.equal(x.grad.cpu(), expected)


def test_its_generator_is_its_own(pretend: Device) -> None:
    torch.manual_seed(3)
    host = torch.get_rng_state()
    first = torch.rand(4, device="pretend")
    assert torch.equal(host, torch.get_rng_state()), "the CPU's did not move"
    state = pretend.get_rng_state()
    second = torch.rand(4, device="pretend")
    pretend.set_rng_state(state)
    assert torch.equal(second.cpu(), torch.rand(4, device="pretend").cpu())
    assert not torch.equal(first.cpu(), second.cpu())
    mine = torch.Generator("pretend").manual_seed(1)
    assert torch.rand(2, device="pretend", generator=mine).device.type == "pretend"
    with pytest.raises(RuntimeError, match="device type for generator"):
        torch.rand(2, device="pretend", generator=torch.Generator())


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: x.sum().item(),
        lambda x: bool(x.any()),
        lambda x: x.tolist(),
        lambda x: x.cpu(),
        lambda x: x.nonzero(),
        lambda x: x[x > 1],
        lambda x: torch.equal(x, x),
        lambda x: torch.allclose(x, x),
        lambda x: x.unique(),
        lambda x: x[torch.tensor([0, 1])],
        lambda x: x.masked_select(x > 1),
        lambda x: torch.tensor([1.0], device=x.device),
        lambda x: f"{x.sum():.3f}",
        lambda x: torch.linalg.cholesky(x @ x.T + 9 * torch.eye(3, device=x.device)),
        lambda x: torch.arange(3, device=x.device).repeat_interleave(torch.arange(3, device=x.device)),
    ],
)
def test_what_waits_is_counted_with_its_line(pretend: Device, wait: object) -> None:
    x = torch.arange(9.0, device="pretend").view(3, 3)
    with counting() as count:
        wait(x)
    assert count.waits
    assert all("test_device.py" in line for line in count.waits), count.waits


def test_a_training_step_of_torch_alone_waits_for_nothing(pretend: Device) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 2)).to("pretend")
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(6, 4, device="pretend"), torch.zeros(6, dtype=torch.long, device="pretend")
    with counting() as count:
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
        y[y > 0] = 3
    assert not count.waits
    assert sum(count.launches.values()) > 10


def test_a_copy_in_the_background_is_there_when_its_event_says_so(pretend: Device) -> None:
    here = torch.zeros(())
    with counting() as count:
        here.copy_(torch.full((), 3.0, device="pretend"), non_blocking=True)
        event = pretend.Event()
        event.record()
        assert here.item() != 3.0, "read too early"
        assert event.query()
        assert here.item() == 3.0
    assert not count.waits


def test_recurrent_layers_run_the_fused_cells_of_an_accelerator(pretend: Device) -> None:
    for layer in (nn.LSTM(3, 4, 2, bidirectional=True), nn.GRU(3, 4, batch_first=True), nn.RNN(3, 4)):
        layer = layer.double()
        x = torch.randn(5, 2, 3, dtype=torch.float64)
        expected = torch.autograd.grad(layer(x)[0].square().sum(), list(layer.parameters()))
        layer.to("pretend")
        found = torch.autograd.grad(layer(x.to("pretend"))[0].square().sum(), list(layer.parameters()))
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a.cpu(), b)
