"""Hugging Face's Trainer on two processes and after a kill: the same weights, the same averages."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")

sys.path.insert(0, str(Path(__file__).parent))

from even import even  # noqa: E402
from launching import PATHS, torchrun  # noqa: E402
from test_trainer import Sentences, arguments, model, weights  # noqa: E402

from sparring.integrations.transformers import SparringTrainer  # noqa: E402

pytestmark = pytest.mark.long
RECIPES = even("bert.embeddings.word_embeddings", "dropout", 16)


def trained(name: str, folder: Path, size: int, resume: Any = None, **changes: Any) -> Any:
    usual = {"per_device_train_batch_size": size, "max_steps": 3, "max_grad_norm": 0.05}
    args = arguments(folder, **(usual | changes))
    trainer = SparringTrainer(model=model(), args=args, train_dataset=Sentences(24), recipe=RECIPES[name])
    trainer.train(resume_from_checkpoint=resume)
    return trainer


SCRIPT = """
from pathlib import Path
from test_trainer_processes import RECIPES, trained, weights
folder = Path({folder!r})
for name in RECIPES:
    saved = dict(save_strategy="steps", save_steps=2) if name == "free_at" else {{}}
    trainer = trained(name, folder / name, 4, ddp_backend="gloo", **saved)
    rank = trainer.args.process_index
    torch.save(weights(trainer.model), folder / f"{{name}}-{{rank}}.pt")
    if name == "free_at":
        again = trained(name, folder / "again", 4, str(folder / name / "checkpoint-2"), ddp_backend="gloo")
        assert torch.equal(weights(again.model), weights(trainer.model))
        mine, theirs = again.objective.state_dict(), trainer.objective.state_dict()
        assert all(torch.equal(mine[key], theirs[key]) for key in mine)
try:
    RECIPES["free_at"] = RECIPES["smart" if rank else "salt"]
    trained("free_at", folder / "refused", 4, ddp_backend="gloo")
except ValueError as error:
    (folder / f"refused-{{rank}}.txt").write_text(str(error))
"""


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    (folder / "run.py").write_text(PATHS + SCRIPT.format(folder=str(folder)))
    torchrun(folder / "run.py")
    return folder


@pytest.mark.parametrize("name", list(RECIPES))
def test_two_processes_equal_one(name: str, two: Path, tmp_path: Path) -> None:
    one = weights(trained(name, tmp_path, 8).model)
    ranks = [torch.load(two / f"{name}-{rank}.pt") for rank in range(2)]
    torch.testing.assert_close(ranks[0], one, rtol=0, atol=1e-6)
    assert torch.equal(*ranks)
    assert (one - weights(model())).abs().max() > 1e-4


def test_processes_with_different_terms_are_refused(two: Path) -> None:
    for rank in range(2):
        assert "process 0 has salt at" in (two / f"refused-{rank}.txt").read_text()


KILLED = """
from pathlib import Path
import test_trainer_processes as case
case.trained("smart", Path({folder!r}), 4, save_strategy="steps", save_steps=5, max_steps=100000, save_total_limit=3)
"""


def test_a_killed_run_goes_on_with_the_same_averages(tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text(PATHS + KILLED.format(folder=str(tmp_path / "killed")))
    run = subprocess.Popen([sys.executable, str(tmp_path / "run.py")], env=os.environ | {"OMP_NUM_THREADS": "1"})
    try:
        deadline = time.monotonic() + 600
        while len(found := finished(tmp_path / "killed")) < 2 and time.monotonic() < deadline:
            assert run.poll() is None, "the run ended by itself"
            time.sleep(0.05)
    finally:
        run.send_signal(signal.SIGKILL)
        run.wait()
    assert run.returncode == -signal.SIGKILL
    found = finished(tmp_path / "killed")
    last = max(found)
    resumed = trained("smart", tmp_path / "resumed", 4, str(found[last]), max_steps=last + 4)
    whole = trained("smart", tmp_path / "whole", 4, max_steps=last + 4)
    torch.testing.assert_close(weights(resumed.model), weights(whole.model), rtol=0, atol=0)
    averages = [list(trainer.objective.terms[1].buffers()) for trainer in (resumed, whole)]
    assert len(averages[0]) > 10
    torch.testing.assert_close(*averages, rtol=0, atol=0)
    assert resumed.objective.number == last + 4


def finished(folder: Path) -> dict[int, Path]:
    """Checkpoints that the Trainer itself takes for whole: its own state is the last file it writes."""
    found = {}
    for path in folder.glob("checkpoint-*/trainer_state.json"):
        try:
            json.loads(path.read_text())
        except ValueError:
            continue
        found[int(path.parent.name.rpartition("-")[2])] = path.parent
    return found
