"""A checkpointed region that fails while backward recomputes it leaves nothing behind."""

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import sparring as sp


class Fragile(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh())
        self.spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))
        self.head = nn.Linear(4, 3)
        self.runs, self.fails_at = 0, 10**6

    def region(self, x: Tensor) -> Tensor:
        self.runs += 1
        x = self.block(x)
        if self.runs >= self.fails_at:
            raise MemoryError("out of memory")
        return self.spectral(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(checkpoint(self.region, x, use_reentrant=False))


def state(model: nn.Module) -> list[object]:
    found: list[object] = []
    for module in model.modules():
        found.append((len(module._forward_hooks), len(module._forward_pre_hooks), "forward" in module.__dict__))
        found.append(
            [getattr(module, name, None) for name in ("track_running_stats", "momentum", "n_power_iterations")]
        )
    return found


@pytest.mark.parametrize("recipe", [sp.recipes.vat, sp.recipes.adversarial_training])
def test_an_error_in_backward_leaves_nothing_behind(recipe) -> None:
    model = Fragile()
    before = state(model)
    objective = recipe(model, sp.cross_entropy, "block.0", ball=sp.L2(0.5))
    x, y = torch.randn(6, 4), torch.arange(6) % 3
    objective(x, y).backward()
    assert state(model) == before
    loss = objective(x, y)
    model.fails_at = model.runs + 1
    with pytest.raises(MemoryError):
        loss.backward()
    assert state(model) == before
    model.fails_at = 10**6
    model.zero_grad()
    objective(x, y).backward()  # and the model is not taken for busy
    assert torch.isfinite(model.block[0].weight.grad).all()


def test_statistics_do_not_move_a_second_time_in_backward() -> None:
    model = Fragile()
    loss = sp.recipes.vat(model, sp.cross_entropy, "block.0", ball=sp.L2(0.5))(torch.randn(6, 4), torch.arange(6) % 3)
    moved = [b.clone() for b in model.buffers()]
    loss.backward()
    assert all(map(torch.equal, moved, model.buffers()))
    assert int(model.block[1].num_batches_tracked) == 1
