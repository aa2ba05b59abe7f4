"""`DistributedDataParallel(objective)` is one process on the joined batch, for every row of the methods table."""

from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ranked_training import Player, built, distance, expected, table, train, why_apart
from ranks import SHARE, on_ranks

pytestmark = pytest.mark.skipif(not dist.is_gloo_available(), reason="this torch has no gloo backend")

FEW = (
    "vat-transformer", "smart-mlp", "salt-mlp", "salt-finite-lstm", "free_lb-lstm", "free_at-mlp", "learnable_bernoulli-learned",
    "adversarial_dropout-seq2seq", "adversarial_weight_perturbation-mlp", "r_drop-convnet",
)  # fmt: skip


def ddp(rank: int, world: int, names: list[str], static: bool = False) -> dict[str, Any]:
    """Train rows; losses are asked for through `objective.steps` and, where a step has one, by calling the wrapper as well."""
    found = {}
    for name in names:
        objective, batch = built(name, world)
        wrapped = DistributedDataParallel(objective, static_graph=static)
        once = objective.parts(batch[1]) == 1 and not static

        def ask(*given: Any, objective: Any = objective, wrapped: Any = wrapped, once: bool = once) -> Any:
            if once and objective.number % 2:
                yield wrapped(*given)
            else:
                yield from objective.steps(*given)

        found[name] = train([Player.of(objective, batch, rank, (SHARE,) * world, ask)])
    return found


def check(found: list[dict[str, Any]], world: int) -> None:
    wrong = []
    for name in found[0]:
        one = expected(name, world)
        # The probe of a finite difference depends on the longest pull of the batch.
        bound = 1e-6 if "finite" in name else 1e-9
        for rank, ranks in enumerate(found):
            off = distance(ranks[name], one, buffers=rank == 0)
            if not off <= bound:
                wrong.append(f"{name}, rank {rank} of {world}: off by {off:.1e}")
    assert not wrong, "\n".join(wrong)


def test_two_processes_are_one(tmp_path: Path) -> None:
    check(on_ranks(ddp, 2, tmp_path, FEW), 2)


@pytest.mark.long
@pytest.mark.parametrize("world", [2, 3])
def test_every_row_in_several_processes_is_one_process(tmp_path: Path, world: int) -> None:
    check(on_ranks(ddp, world, tmp_path, list(table())), world)


@pytest.mark.long
def test_a_static_graph_changes_nothing(tmp_path: Path) -> None:
    check(on_ranks(ddp, 2, tmp_path, [name for name in table() if name.endswith(("-mlp", "-transformer"))], True), 2)


def test_rows_that_stay_apart_are_few_and_say_why() -> None:
    apart = {name: why_apart(name) for name in table()}
    assert {name for name, why in apart.items() if why} == {
        name
        for name in apart
        if name.endswith("-convnet")
        or name.startswith(("adversarial_weight_perturbation", "trs", "adversarial_dropout-weights"))
    }
