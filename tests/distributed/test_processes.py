"""Two processes are one: a few rows of the table, accumulation without synchronising, uneven batches, ranks that disagree."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import sparring as sp
from ranks import on_ranks, rows, shares
from wrapped_training import check_rows, check_shards, ddp, fsdp

pytestmark = pytest.mark.skipif(not dist.is_gloo_available(), reason="this torch has no gloo backend")

UNEVEN = {2: (5, 2), 3: (4, 1, 2)}


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def tagger() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(9, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def batch(examples: int = 7) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(examples, 4, generator=generator, dtype=torch.float64), torch.arange(examples) % 3


def sentences() -> tuple[Tensor, Tensor]:
    """Words and labels; the examples have from none to five positions that count."""
    generator = torch.Generator().manual_seed(2)
    words, labels = torch.randint(9, (7, 5), generator=generator), torch.randint(3, (7, 5), generator=generator)
    counts = torch.tensor([5, 1, 3, 0, 2, 5, 4])
    return words, torch.where(torch.arange(5) < counts.unsqueeze(1), labels, -100)


RECIPES: dict[str, Any] = {  # without noise of their own
    "plain": lambda net: sp.Objective(net, sp.cross_entropy),
    "adversarial_training": lambda net: sp.recipes.adversarial_training(net, sp.cross_entropy, "0", ball=sp.L2(0.5)),
    "free_lb": lambda net: sp.recipes.free_lb(net, sp.cross_entropy, "0", ball=sp.L2(0.5), steps=2, start=0.0),
    "tokens": lambda net: sp.recipes.adversarial_training(
        net, sp.cross_entropy, "0", ball=sp.L2(0.5), reduction="tokens"
    ),
    "examples": lambda net: sp.recipes.adversarial_training(net, sp.cross_entropy, "0", ball=sp.L2(0.5)),
    "unlabelled": lambda net: sp.Objective(
        net, sp.cross_entropy, sp.Term(sp.Output("0"), _Constant(), sp.kl, detach_clean=True)
    ),
}


class _Constant(sp.Noise):
    """A player whose answer is no surprise: the value itself, scaled to the ball."""

    def __init__(self) -> None:
        super().__init__(sp.L2(0.5))

    def draw(self, slot: Any) -> Tensor:
        return 0.1 * slot.value.detach()


def of(name: str) -> tuple[sp.Objective, tuple[Any, ...]]:
    """A recipe on its model, with the examples of all ranks."""
    tokens = name in ("tokens", "examples")
    given: tuple[Any, ...] = sentences() if tokens else batch()
    return RECIPES[name](tagger() if tokens else model()), given


def gradients(objective: sp.Objective, *given: Any, **options: Any) -> list[Tensor]:
    for loss in objective.steps(*given, **options):
        loss.backward()
    return [p.grad.clone() for p in objective.model.parameters()]


def ways(rank: int, world: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in RECIPES:
        objective, given = of(name)
        wrapped = DistributedDataParallel(objective)
        mine = rows(given, shares(UNEVEN[world])[rank])
        more = {}
        if name == "unlabelled":  # as many as the other ranks have labelled examples
            more = {"unlabelled": batch(9)[0][shares(tuple(reversed(UNEVEN[world])))[rank]]}
        found[f"uneven {name}"] = gradients(wrapped.module, *mine, items="ranks", **more)
    for name in ("adversarial_training", "free_lb"):
        for static in (False, True):
            objective, given = of(name)
            wrapped = DistributedDataParallel(objective, static_graph=static)
            (x, y), size = rows(given, shares(UNEVEN[world])[rank]), sum(UNEVEN[world]) / world
            gradients(objective, x, y)  # a static graph is learned in the first step
            objective.zero_grad()
            with wrapped.no_sync():
                gradients(objective, x[:1], y[:1], items=size)
            found[f"accumulated {name} {static}"] = gradients(
                objective, *((x[1:], y[1:]) if len(x) > 1 else (x, y)), items=size if len(x) > 1 else 1e300
            )
    for name, build in DISAGREEMENTS.items():
        try:
            DistributedDataParallel(build(rank))(*batch())
            found[name] = "nothing was said"
        except RuntimeError as error:
            found[name] = str(error)
    return found


DISAGREEMENTS = {
    "terms": lambda rank: RECIPES["adversarial_training" if rank else "plain"](model()),
    "radius": lambda rank: sp.recipes.vat(model(), sp.cross_entropy, "0", ball=sp.L2(1.0 if rank else 2.0)),
    "steps": lambda rank: sp.recipes.free_lb(model(), sp.cross_entropy, "0", ball=sp.L2(0.5), steps=2 + rank),
    "reduction": lambda rank: sp.Objective(model(), sp.cross_entropy, reduction="tokens" if rank else "examples"),
}


def check_ways(found: list[dict[str, Any]], world: int) -> None:
    whole = {}
    for name in RECIPES:
        objective, given = of(name)
        more = {"unlabelled": batch(9)[0][: sum(UNEVEN[world])]} if name == "unlabelled" else {}
        whole[name] = gradients(objective, *given, **more)
    for one in found:
        for key, got in one.items():
            if key in DISAGREEMENTS:
                assert "the ranks train different objectives" in got, f"{key}: {got}"
            else:
                torch.testing.assert_close(got, whole[key.split()[1]], rtol=1e-9, atol=1e-12, msg=key)


ROWS = (
    "vat-mlp", "salt-mlp", "salt-finite-lstm", "free_lb-lstm", "free_at-mlp", "learnable_bernoulli-learned",
    "adversarial_weight_perturbation-mlp", "r_drop-convnet",
)  # fmt: skip
SHARDED = {
    "block": ("smart-mlp", "salt-finite-convnet", "free_at-mlp", "vat-scores-transformer", "word_iat-lstm", "salt-mlp"),
    "model": ("smart-mlp",),
    "objective": ("salt-mlp", "smart-mlp"),
}


def everything(rank: int, world: int) -> tuple[Any, ...]:
    """To start a process takes longer than all it does here."""
    return ways(rank, world), ddp(rank, world, ROWS), fsdp(rank, world, SHARDED)


def test_two_processes_are_one(tmp_path: Path) -> None:
    found = on_ranks(everything, 2, tmp_path)
    check_ways([one[0] for one in found], 2)
    check_rows([one[1] for one in found], 2)
    check_shards([one[2] for one in found], 2)


@pytest.mark.long
def test_three_processes_give_the_mean_over_all_examples(tmp_path: Path) -> None:
    check_ways(on_ranks(ways, 3, tmp_path), 3)


def test_items_is_a_number_or_ranks() -> None:
    objective = RECIPES["plain"](model())
    torch.testing.assert_close(objective(*batch(), items="ranks"), objective(*batch()))
    with pytest.raises(ValueError, match='"ranks"'):
        objective(*batch(), items="all")


def test_a_scaled_loss_moves_players_nowhere_else() -> None:
    """Gradient scaling multiplies the backward pass from which FreeLB and FreeAT climb; they use its direction alone."""
    for recipe in (sp.recipes.free_lb, sp.recipes.free_at):
        found = []
        for scale in (1.0, 1024.0):
            objective = recipe(model(), sp.cross_entropy, "0", ball=sp.L2(0.5), steps=3, start=0.0)
            for loss in objective.steps(*batch()):
                (scale * loss).backward()
            found.append([p.grad / scale for p in objective.model.parameters()])
        torch.testing.assert_close(*found)


def test_without_other_processes_there_is_no_wrapper() -> None:
    objective = RECIPES["plain"](model())
    assert len(list(objective.steps(*batch()))) == 1
