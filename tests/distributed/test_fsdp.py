"""FSDP2 on several processes is one process on the joined batch, or refuses with the fix: every row, sharded in three ways."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import sparring as sp
from ranked_training import Player, built, distance, table, train
from ranks import SHARE, on_ranks
from wrapped_training import check_shards, fsdp, shard

pytestmark = pytest.mark.skipif(not dist.is_gloo_available(), reason="this torch has no gloo backend")

WAYS = ("block", "model", "objective")


@pytest.mark.long
@pytest.mark.parametrize("world", [2, 3])
def test_every_row_sharded_is_one_process_or_refused(tmp_path: Path, world: int) -> None:
    check_shards(on_ranks(fsdp, world, tmp_path, {way: list(table()) for way in WAYS}), world)


def unusual(rank: int, world: int) -> dict[str, Any]:
    """What stands beside the table: other orders, precisions, modes."""
    found: dict[str, Any] = {}
    objective, batch = built("smart-mlp", world)
    shard(objective.model, blocks=True)
    found["sharded after its objective was built"] = _error(objective, batch, rank, world)
    low = MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=torch.float32)
    objective, batch = built("salt-finite-mlp", world, lambda model: fully_shard(model.float(), mp_policy=low))
    found["half precision"] = _error(objective, [batch[0].float(), *batch[1:]], rank, world)
    for name in ("salt-finite-mlp", "salt-adam-2-mlp"):  # several steps, all of the interaction
        objective, batch = built(name, world)
        model, player = objective.model, objective.terms[0].by
        steps = sp.PGD(player.ball, 3, player.step_size, player.start, player.update, "finite_difference")
        shard(model, blocks=True)
        objective = sp.recipes.salt(model, sp.cross_entropy, "0", by=steps)
        found[name] = train([Player.of(objective, batch, rank, (SHARE,) * world)])
    with torch.no_grad():
        found["measured"] = float(objective(*(part[:4] for part in batch[:2])))
    return found


def _error(objective: sp.Objective, batch: Any, rank: int, world: int) -> str:
    with pytest.raises(RuntimeError) as error:
        train([Player.of(objective, batch, rank, (SHARE,) * world)])
    return str(error.value)


@pytest.mark.long
def test_other_orders_and_precisions(tmp_path: Path) -> None:
    for found in on_ranks(unusual, 2, tmp_path):
        assert "fully_shard(model) first" in found["sharded after its objective was built"]
        assert "full precision" in found["half precision"]
        assert found["measured"] == pytest.approx(found["measured"])
        for name in ("salt-finite-mlp", "salt-adam-2-mlp"):
            objective, batch = built(name, 2)
            player = objective.terms[0].by
            steps = sp.PGD(player.ball, 3, player.step_size, player.start, player.update, "autograd")
            exact = sp.recipes.salt(objective.model, sp.cross_entropy, "0", by=steps)
            one = train([Player.of(exact, batch, 0, (2 * SHARE,))])
            assert distance(found[name], one) < 1e-6
