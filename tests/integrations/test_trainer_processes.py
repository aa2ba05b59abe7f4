"""Hugging Face's Trainer on two processes and after a kill: the same weights, the same averages."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers")

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from even import even  # noqa: E402
from test_trainer import Sentences, arguments, model, weights  # noqa: E402

from sparring.integrations.transformers import SparringTrainer  # noqa: E402

RECIPES = even("bert.embeddings.word_embeddings", "dropout", 16)


def trained(name: str, folder: Path, size: int, **changes: object) -> SparringTrainer:
    args = arguments(folder, per_device_train_batch_size=size, max_steps=3, max_grad_norm=0.05, **changes)
    trainer = SparringTrainer(model=model(), args=args, train_dataset=Sentences(24), recipe=RECIPES[name])
    trainer.train()
    return trainer


SCRIPT = """
import sys
sys.path[:0] = {paths!r}
import torch
torch.set_num_threads(1)
from pathlib import Path
from test_trainer_processes import RECIPES, trained, weights
folder = Path({folder!r})
for name in RECIPES:
    trainer = trained(name, folder / name, 4, ddp_backend="gloo")
    torch.save(weights(trainer.model), folder / f"{{name}}-{{trainer.args.process_index}}.pt")
"""


def launch(script: str, folder: Path, processes: int = 2) -> None:
    (folder / "run.py").write_text(script)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={processes}", f"--master-port={port}", str(folder / "run.py")],
        capture_output=True, text=True, timeout=600, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    launch(SCRIPT.format(paths=[str(HERE), str(HERE.parent)], folder=str(folder)), folder)
    return folder


@pytest.mark.parametrize("name", list(RECIPES))
def test_two_processes_equal_one(name: str, two: Path, tmp_path: Path) -> None:
    one = weights(trained(name, tmp_path, 8).model)
    ranks = [torch.load(two / f"{name}-{rank}.pt") for rank in range(2)]
    torch.testing.assert_close(ranks[0], one, rtol=0, atol=1e-6)
    assert torch.equal(*ranks)
    assert (one - weights(model())).abs().max() > 1e-4
