"""FSDP2 on several processes is one process on the joined batch, or refuses with the fix: every row, sharded in three ways."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import sparring as sp
from methods import METHODS
from ranked_training import Player, built, distance, expected, table, train
from ranks import SHARE, on_ranks

pytestmark = pytest.mark.skipif(not dist.is_gloo_available(), reason="this torch has no gloo backend")

WAYS = ("block", "model", "objective")
REFUSED = {  # by the way of sharding: methods, and what the sentence says to do
    "block": {
        **{m.name: "fully_shard(objective)" for m in METHODS if m.name.startswith("learnable_bernoulli")},
        **dict.fromkeys(("salt", "salt-adam-2", "salt-late", "salt-scores"), 'unroll="finite_difference"'),
        "deg": "fully_shard(objective)",
        "trs": "DistributedDataParallel(objective)",
    },
    "objective": {"smart": "fully_shard(model)"},
}
REFUSED["model"] = REFUSED["block"]
FEW = {
    "block": ("vat-scores-transformer", "word_iat-lstm", "smart-mlp", "salt-finite-mlp", "free_at-mlp", "free_lb-lstm", "adversarial_dropout-seq2seq", "salt-mlp",
              "adversarial_weight_perturbation-mlp", "learnable_bernoulli-learned"),
    "model": ("smart-mlp", "salt-finite-mlp"),
    "objective": ("salt-mlp", "learnable_bernoulli-learned", "smart-mlp"),
}  # fmt: skip


def shard(model: nn.Module, blocks: bool) -> None:
    """The model as a whole, after every module that has parameters of its own (and is called, unlike attention's projection)."""
    for module in model.modules() if blocks else ():
        own = any(True for _ in module.parameters(recurse=False))
        if module is not model and own and type(module).__name__ != "NonDynamicallyQuantizableLinear":
            fully_shard(module)
    fully_shard(model)


def fsdp(rank: int, world: int, wanted: dict[str, list[str]]) -> dict[tuple[str, str], Any]:
    """What training rows gives in each way, or the sentence of the refusal."""
    found: dict[tuple[str, str], Any] = {}
    for way, names in wanted.items():
        for name in names:
            try:
                if way == "objective":
                    objective, batch = built(name, world)
                    fully_shard(objective)
                else:
                    objective, batch = built(name, world, lambda model, way=way: shard(model, way == "block"))
                found[way, name] = train([Player.of(objective, batch, rank, (SHARE,) * world)])
            except RuntimeError as error:
                found[way, name] = str(error)
    return found


def check(found: list[dict[tuple[str, str], Any]], world: int) -> None:
    wrong = []
    for (way, name), first in found[0].items():
        refusal = REFUSED[way].get(table()[name][0].name)
        if refusal is not None or isinstance(first, str):
            if not (isinstance(first, str) and refusal and refusal in first):
                wrong.append(f"{name} by {way}: {first if isinstance(first, str) else 'not refused'}")
            continue
        one = expected(name, world)
        for rank, ranks in enumerate(found):
            off = distance(ranks[way, name], one, buffers=rank == 0)
            if not off <= (1e-6 if "finite" in name else 1e-9):
                wrong.append(f"{name} by {way}, rank {rank} of {world}: off by {off:.1e}")
    assert not wrong, "\n".join(wrong)


def test_sharded_is_one_process_or_refused(tmp_path: Path) -> None:
    check(on_ranks(fsdp, 2, tmp_path, FEW), 2)


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("world", [2, 3])
def test_every_row_sharded_is_one_process_or_refused(tmp_path: Path, way: str, world: int) -> None:
    check(on_ranks(fsdp, world, tmp_path, {way: list(table())}), world)


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
