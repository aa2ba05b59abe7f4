"""Two processes (gloo) train as one process does on the doubled batch: same losses, same weights.

The noise is made the same by drawing it for the whole batch in every process and keeping the own rows; everything else
is the lab's own code, started by torchrun.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch

WORKER = '''
import os, sys
import torch
from pathlib import Path
from torch.overrides import TorchFunctionMode
from sparring.lab.registry import task
from sparring.lab.runs.run import execute

RANK, WORLD = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
name, method, batch, out = sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])
SHAPED = {torch.rand, torch.randn}
LIKE = {torch.rand_like, torch.randn_like, torch.bernoulli, torch.Tensor.bernoulli}
INPLACE = {torch.Tensor.uniform_, torch.Tensor.normal_, torch.Tensor.bernoulli_, torch.Tensor.exponential_}


class WholeBatchNoise(TorchFunctionMode):
    """Random numbers of a batch are drawn for all processes; each keeps its rows."""

    def own(self, whole):
        return whole[RANK * batch : (RANK + 1) * batch]

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function in SHAPED:
            size = list(args[0]) if args and isinstance(args[0], (tuple, list, torch.Size)) else list(args)
            if size and size[0] == batch:
                return self.own(function([batch * WORLD, *size[1:]], **kwargs)).clone()
        elif function in LIKE and args[0].dim() and len(args[0]) == batch:
            like = args[0].detach()
            whole = torch.cat([like] * WORLD)
            if function in (torch.bernoulli, torch.Tensor.bernoulli):
                drawn = torch.rand(whole.shape, dtype=torch.float64)  # a draw that does not depend on the rates
                return (self.own(drawn) < like).to(like)
            return self.own(function(whole, *args[1:], **kwargs)).clone()
        elif function in (torch.randint,) and any(isinstance(a, (tuple, list, torch.Size)) and a and a[0] == batch for a in args):
            args = [[batch * WORLD, *a[1:]] if isinstance(a, (tuple, list, torch.Size)) else a for a in args]
            return self.own(function(*args, **kwargs)).clone()
        elif function in INPLACE and args[0].dim() and len(args[0]) == batch:
            whole = torch.empty(batch * WORLD, *args[0].shape[1:], dtype=args[0].dtype)
            function(whole, *args[1:], **kwargs)
            args[0].copy_(self.own(whole))
            return args[0]
        return function(*args, **kwargs)


torch.set_num_threads(1)
changes = {"epochs": 2, "epoch_batches": 4, "batch": batch, "optimiser": "sgd", "lr": 0.05}  # adaptive steps would magnify rounding
known = task(name).setting(method).values
changes.update({k: v for k, v in {"hidden": 16, "width": 8, "attacked": 5, "swept": 5, "margin_steps": 2}.items() if k in known})
if "flips" in known:
    changes["flips"] = 0.2


import sparring.lab.training.train as train
original = train.Session.batches


def batches(self):
    """Every process begins a batch with the same random state, so that it draws the same whole batch."""
    for index in original(self):
        torch.manual_seed(self.progress.step)
        yield index


train.Session.batches = batches
with WholeBatchNoise():
    execute(task(name).setting(method, overrides=changes), out)
if torch.distributed.is_initialized():  # else torch's own threads may abort a process that ends before the other
    torch.distributed.destroy_process_group()
'''


def run(folder: Path, processes: int, *arguments: str) -> None:
    script = folder / "worker.py"
    script.write_text(WORKER)
    launch = [sys.executable, str(script)]
    if processes > 1:
        launch = [
            sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes), "--master-port",
            str(20_000 + os.getpid() % 20_000), str(script),
        ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*launch, *arguments], capture_output=True, text=True, timeout=500, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("sequential-digits", "salt"),
        pytest.param("sequential-digits", "adversarial_dropout", marks=pytest.mark.long),
        ("digits-ensemble", "lpd"),
    ],
)
def test_two_processes_equal_one_with_the_doubled_batch(tmp_path: Path, name: str, method: str) -> None:
    run(tmp_path, 1, name, method, "100", str(tmp_path / "one"))
    run(tmp_path, 2, name, method, "50", str(tmp_path / "two"))
    one, two = (
        [json.loads(line) for line in (tmp_path / which / "metrics.jsonl").read_text().splitlines()]
        for which in ("one", "two")
    )
    assert len(one) == len(two) == 2
    # Rounding differs with the batch's size, and players that take signs, normalise or flip units magnify it.
    for a, b in zip(one, two, strict=True):
        assert len(a["losses"]) == len(b["losses"])
        assert b["losses"] == pytest.approx(a["losses"], rel=2e-4)
    first, second = (
        safetensors.torch.load(next((tmp_path / which).glob("best-*")).read_bytes()) for which in ("one", "two")
    )
    for key, value in first.items():
        assert torch.allclose(value.double(), second[key].double(), rtol=1e-2, atol=1e-3), key
