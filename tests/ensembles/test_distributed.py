"""Batch statistics over several processes are those of the whole batch."""

import os

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from sparring.ensembles import LaplacePriorityDropout, PriorityDiversifiedDropout

SHARES = [slice(0, 3), slice(3, 8)]
DROPOUTS = {
    "laplace": LaplacePriorityDropout(batchwise=True, gamma=50.0),
    "diversified": PriorityDiversifiedDropout(batchwise=True),
    "one by one": LaplacePriorityDropout(gamma=50.0),
}


def features():
    generator = torch.Generator().manual_seed(0)
    scale = torch.tensor([1.0, 2.0, 0.5])
    made = [(torch.randn(8, 12, generator=generator) * s).relu() for s in scale]
    for tensor in made:
        tensor[3:5] = 0.0
    return made


def rank(number, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=number, world_size=2)
    mine = [tensor[SHARES[number]] for tensor in features()]
    rates = {name: dropout.keep_rates(mine) for name, dropout in DROPOUTS.items()}
    torch.save(rates, os.path.join(folder, f"{number}.pt"))
    dist.destroy_process_group()


@pytest.mark.skipif(not dist.is_gloo_available(), reason="this torch has no gloo backend")
def test_ranks_share_their_counts(tmp_path):
    mp.start_processes(rank, (str(tmp_path),), nprocs=2, start_method="spawn")
    parts = [torch.load(tmp_path / f"{number}.pt") for number in range(2)]
    for name, dropout in DROPOUTS.items():
        whole = dropout.keep_rates(features())
        for number, part in enumerate(parts):
            for got, want in zip(part[name], whole):
                torch.testing.assert_close(got, want[SHARES[number]], msg=f"{name}, rank {number}")
    alone = DROPOUTS["laplace"].keep_rates([tensor[SHARES[0]] for tensor in features()])
    assert not torch.allclose(alone[0], parts[0]["laplace"][0])  # the other rank's examples did matter
