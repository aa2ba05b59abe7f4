"""What the training loop's processes do together: gradients that leave during backward, and validation that is shared."""

import copy
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from ranks import free_port, on_ranks
from sparring.lab.registry import task
from sparring.lab.runs.run import accelerate, prepare
from sparring.lab.training import gradients as averaging
from sparring.lab.training.gradients import Gradients
from sparring.lab.training.sharing import shared
from sparring.lab.training.train import train

pytestmark = pytest.mark.skipif(not dist.is_gloo_available(), reason="this torch has no gloo backend")


class Branches(nn.Module):
    """Every process uses the trunk, some use a branch, none uses the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(3, 3)
        self.branches = nn.ModuleList(nn.Linear(3, 1) for _ in range(3))
        self.frozen = nn.Linear(3, 3).requires_grad_(False)

    def forward(self, x: Tensor, branch: int) -> Tensor:
        return self.branches[branch](self.frozen(self.trunk(x)).tanh()).sum()


def model() -> Branches:
    torch.manual_seed(0)
    return Branches().double()


def inputs(rank: int, step: int) -> Tensor:
    return torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(10 * step + rank))


def gradients_of(net: nn.Module) -> dict[str, Tensor | None]:
    return {name: None if p.grad is None else p.grad.clone() for name, p in net.named_parameters()}


def work(rank: int, world: int) -> dict[str, Any]:
    averaging.BUCKET = 4  # a bucket or two a layer
    net = model()
    together = Gradients(list(net.parameters()), world)
    found: dict[str, Any] = {}
    for step in range(2):  # two backward passes, the second of which an update follows
        net.zero_grad()
        net(inputs(rank, step), 0).backward()
        with together.leaving():
            net(inputs(rank, step + 5), min(rank, 1)).backward()
        together.settle()
        found[f"step {step}"] = gradients_of(net)
    net.zero_grad()
    net(inputs(rank, 9), 0).backward()
    together.settle()  # nobody said that an update would follow
    found["unannounced"] = gradients_of(net)
    found |= scoring(rank, world)
    return found


class Counting(nn.Sequential):
    """Notes how many rows it was given."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(*layers)
        self.seen: list[int] = []

    def forward(self, x: Tensor) -> Any:
        self.seen.append(len(x))
        return super().forward(x)


def scorers() -> dict[str, Counting]:
    torch.manual_seed(1)
    plain = Counting(nn.Linear(3, 2), nn.Tanh())
    noisy = Counting(nn.Linear(3, 2), nn.Dropout(0.5))
    pooled = Counting(nn.Linear(3, 2), nn.Flatten(0))
    return {"plain": plain.double().eval(), "noisy": noisy.double().train(), "pooled": pooled.double().eval()}


def scoring(rank: int, world: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, net in scorers().items():
        torch.manual_seed(3)
        kind = type(net)
        with shared(net, world, rank), torch.no_grad():
            outputs = [net(inputs(0, step)[:rows]) for step, rows in enumerate((4, 3, 1))]
            doubled = copy.deepcopy(net)
            doubled[0].weight.mul_(2)
            outputs.append(doubled(inputs(0, 7)))
            with torch.enable_grad():
                outputs.append(net(inputs(0, 8)).detach())
        assert type(net) is kind
        found[f"outputs {name}"], found[f"seen {name}"] = outputs, net.seen
    return found


def test_processes_average_and_share(tmp_path: Path) -> None:
    world = 2
    found = on_ranks(work, world, tmp_path)
    net = model()
    for step, key in ((0, "step 0"), (1, "step 1"), (9, "unannounced")):
        net.zero_grad()
        for rank in range(world):
            net(inputs(rank, step), 0).backward()
            if step != 9:
                net(inputs(rank, step + 5), min(rank, 1)).backward()
        for one in found:
            for name, got in one[key].items():
                whole = net.get_parameter(name).grad
                if whole is None:
                    assert got is None, name
                else:
                    torch.testing.assert_close(got, whole / world, msg=f"{key}: {name}")
    assert found[0]["step 0"]["branches.1.weight"] is not None  # used by the other process alone
    assert found[1]["step 0"]["branches.2.weight"] is None
    check_scoring(found)


def test_what_is_ready_leaves_before_backward_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.Sequential(*(nn.Linear(3, 3) for _ in range(4)))
    there: list[int] = []  # how many gradients there were when each bucket left

    def leave(flat: Tensor, async_op: bool) -> None:
        there.append(sum(p.grad is not None for p in net.parameters()))

    monkeypatch.setattr(averaging, "BUCKET", 1)
    monkeypatch.setattr(averaging.dist, "all_reduce", leave)
    with Gradients(list(net.parameters()), 2).leaving():
        net(torch.randn(2, 3)).sum().backward()
    assert len(there) == 8
    assert all(
        count <= 2 * (place // 2) + 2 for place, count in enumerate(there)
    )  # no layer waits for the one before it


def check_scoring(found: list[dict[str, Any]]) -> None:
    for name, net in scorers().items():
        torch.manual_seed(3)
        with torch.no_grad():
            whole = [net(inputs(0, step)[:rows]) for step, rows in enumerate((4, 3, 1))]
            doubled = copy.deepcopy(net)
            doubled[0].weight.mul_(2)
            whole += [doubled(inputs(0, 7)), net(inputs(0, 8))]
        for one in found:
            torch.testing.assert_close(one[f"outputs {name}"], whole, msg=name)
    for one in found:
        assert one["seen plain"][:4] == [
            2,
            2,
            1,
            4,
        ]  # halves, the second one with a row twice; one row; and with gradients
        assert one["seen noisy"][0] == 2
        assert one["seen noisy"][1:] == [4, 3, 1, 4]  # random numbers were drawn: done again, whole, from then on
        assert one["seen pooled"] == [2, 4, 3, 1, 4]


def interrupted(rank: int, world: int, port: int) -> list[dict[str, Tensor]]:
    """The weights of a FreeAT run in one go, and of one that went on from what the main process saved in the middle."""
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in place.items()}
    changes = {"epochs": 1, "epoch_batches": 4, "batch": 8, "width": 16, "layers": 1}
    setting = task("cola").setting("free_at", overrides=changes)
    whole, part = prepare(setting, accelerate(setting)), prepare(setting, accelerate(setting))
    saved: list[Any] = []

    def save() -> None:
        state = copy.deepcopy(whole.state())
        if whole.progress.step == 2:
            saved.append(state)

    torch.manual_seed(rank)
    train(whole, save)
    dist.broadcast_object_list(saved, 0)
    part.restore(saved[0])
    train(part)
    return [dict(session.model.state_dict()) for session in (whole, part)]


@pytest.mark.long
def test_every_process_goes_on_with_its_own_perturbation(tmp_path: Path) -> None:
    found = on_ranks(interrupted, 2, tmp_path, free_port())
    for whole, part in found:
        for name, value in whole.items():
            assert torch.equal(value, part[name]), name
            assert torch.equal(value, found[0][0][name]), name
