"""`DistributedDataParallel(objective)` is one process on the joined batch, for every row of the methods table."""

from pathlib import Path

import pytest
import torch.distributed as dist

from ranked_training import table, why_apart
from ranks import on_ranks
from wrapped_training import check_rows, ddp

pytestmark = pytest.mark.skipif(not dist.is_gloo_available(), reason="this torch has no gloo backend")


@pytest.mark.long
@pytest.mark.parametrize("world", [2, 3])
def test_every_row_in_several_processes_is_one_process(tmp_path: Path, world: int) -> None:
    check_rows(on_ranks(ddp, world, tmp_path, list(table())), world)


@pytest.mark.long
def test_a_static_graph_changes_nothing(tmp_path: Path) -> None:
    check_rows(
        on_ranks(ddp, 2, tmp_path, [name for name in table() if name.endswith(("-mlp", "-transformer"))], True), 2
    )


def test_rows_that_stay_apart_are_few_and_say_why() -> None:
    apart = {name: why_apart(name) for name in table()}
    assert {name for name, why in apart.items() if why} == {
        name
        for name in apart
        if name.endswith("-convnet")
        or name.startswith(("adversarial_weight_perturbation", "trs", "adversarial_dropout-weights"))
    }
