"""Lightning with recipes: nothing lost of the framework's own, several processes equal one, resumed equals whole."""

import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

lightning = pytest.importorskip("lightning")

sys.path.insert(0, str(Path(__file__).parent))

from even import even  # noqa: E402
from launching import PATHS, torchrun  # noqa: E402

import sparring as sp  # noqa: E402
from sparring.integrations.lightning import Sparring  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.*"),
    pytest.mark.filterwarnings("ignore:You are using `torch.load`"),
]

RECIPES = {
    "zero": partial(sp.recipes.vat, at="0", weight=0.0),
    "vat": partial(sp.recipes.vat, at="0", ball=sp.L2(0.5)),
} | even("0", "2", 16)


def build() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.0), nn.Linear(16, 3))


class Plain(lightning.LightningModule):
    def __init__(self, epochs: bool = False) -> None:
        super().__init__()
        self.model = build()
        self.epochs = epochs

    def training_step(self, batch: Any, index: int) -> Tensor:
        return nn.functional.cross_entropy(self.model(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        interval = "epoch" if self.epochs else "step"
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": interval, "frequency": 2}}


class Ours(Sparring, Plain):
    def __init__(self, name: str, **words: Any) -> None:
        super().__init__(**words)
        self.objective = RECIPES[name](self.model, sp.cross_entropy)


def batches(size: int = 4, count: int = 16, share: slice = slice(None)) -> DataLoader:
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(count, 6, generator=generator), torch.randint(3, (count,), generator=generator)
    return DataLoader(TensorDataset(x[share], y[share]), batch_size=size)


def trainer(**changes: Any) -> Any:
    usual = {
        "max_epochs": 2, "accelerator": "cpu", "logger": False, "enable_checkpointing": False, "enable_progress_bar": False,
        "enable_model_summary": False, "log_every_n_steps": 1,
    }  # fmt: skip
    return lightning.Trainer(**(usual | changes))


def fit(module: Any, loader: Any = None, path: Any = None, **changes: Any) -> Tensor:
    module.run = trainer(**changes)
    module.run.fit(module, loader or batches(), ckpt_path=path)
    return weights(module)


def weights(module: Any) -> Tensor:
    return torch.cat([p.detach().flatten() for p in module.model.parameters()])


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"accumulate_grad_batches": 2, "gradient_clip_val": 0.1},
        {"precision": "bf16-mixed"},
        {"precision": "64-true"},
    ],
    ids=str,
)
def test_weight_zero_is_the_framework_itself(changes: dict[str, Any]) -> None:
    # bf16 is rounded at other places: the objective's own loss is computed in float32
    tolerance = 2e-3 if changes.get("precision") == "bf16-mixed" else 1e-6
    torch.testing.assert_close(fit(Ours("zero"), **changes), fit(Plain(), **changes), rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", [n for n in RECIPES if n != "zero"])
def test_every_recipe_trains_as_a_loop_of_your_own_and_is_logged(name: str) -> None:
    module = Ours(name, epochs=True)
    torch.manual_seed(5)
    found = fit(module)
    reference = Ours(name)
    objective = reference.objective
    optimizer = torch.optim.SGD(reference.model.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(5)
    for _ in range(2):
        for inputs, targets in batches():
            for loss in objective.steps(inputs, targets):
                loss.backward()
                if objective.update_each_loss:
                    optimizer.step()
                    optimizer.zero_grad()
            if not objective.update_each_loss:
                optimizer.step()
                optimizer.zero_grad()
    torch.testing.assert_close(found, weights(reference), rtol=0, atol=1e-6)
    logged = {key.removeprefix("sparring/"): float(value) for key, value in module.run.callback_metrics.items()}
    shown = objective.diagnostics
    logged.pop("salt/interaction", None)  # measured in some steps only, and Lightning shows what it was last told
    assert logged.keys() == shown.keys() - {"salt/interaction"}
    if name == "free_lb":  # all losses of a batch in one, where the loop's last word is about the last of them
        logged.pop("loss"), logged.pop("backward_passes")
    assert logged == {key: pytest.approx(shown[key], abs=1e-5) for key in logged}


def test_several_losses_under_accumulation_and_bf16() -> None:
    def run(size: int, **changes: Any) -> Tensor:
        return fit(Ours("free_lb", epochs=True), batches(size), **changes)

    joined = run(8)
    torch.testing.assert_close(run(4, accumulate_grad_batches=2), joined, rtol=0, atol=1e-6)
    torch.testing.assert_close(run(8, precision="bf16-mixed"), joined, rtol=0, atol=2e-2)
    by_hand = Ours("free_lb", epochs=True)
    by_hand.automatic_optimization = False
    torch.testing.assert_close(fit(by_hand, batches(8)), joined, rtol=0, atol=1e-6)
    with pytest.raises(Exception, match="gradient accumulation is not supported for manual optimization"):
        fit(Ours("free_at"), accumulate_grad_batches=2)


@pytest.mark.parametrize("epochs", [False, True])
def test_schedulers_move_where_the_recipe_updates_by_itself(epochs: bool) -> None:
    plain, ours = Plain(epochs), Ours("free_at", epochs=epochs)
    fit(plain, max_epochs=3)
    fit(ours, max_epochs=3)
    rates = [m.run.optimizers[0].param_groups[0]["lr"] for m in (ours, plain)]
    assert rates[0] == rates[1] < 0.1


@pytest.mark.parametrize("name", ["smart", "free_at", "salt"])
def test_a_resumed_run_has_the_state_of_a_whole_one(name: str, tmp_path: Path) -> None:
    whole, half, resumed = Ours(name, epochs=True), Ours(name, epochs=True), Ours(name, epochs=True)
    expected = fit(whole, max_epochs=2)
    fit(half, max_epochs=1)
    half.run.save_checkpoint(tmp_path / "half.ckpt")
    torch.testing.assert_close(fit(resumed, path=tmp_path / "half.ckpt", max_epochs=2), expected, rtol=0, atol=0)
    mine, theirs = resumed.objective.state_dict(), whole.objective.state_dict()
    assert mine.keys() == theirs.keys()
    for key, value in mine.items():
        torch.testing.assert_close(value, theirs[key], rtol=0, atol=0)
    assert resumed.objective.number == whole.objective.number > half.objective.number


def test_what_cannot_work_is_said() -> None:
    with pytest.raises(TypeError, match="no labels that Sparring would know"):
        fit(Ours("vat"), DataLoader(torch.randn(8, 6), batch_size=4))
    with pytest.raises(TypeError, match=r"a mapping of x\): let it be"):
        Ours("vat").split_batch({"x": torch.zeros(2)})
    assert Ours("vat").split_batch({"x": 1, "labels": 2}) == ({"x": 1}, 2)
    empty = Ours("vat")
    del empty.objective
    with pytest.raises(TypeError, match="Ours has no objective"):
        fit(empty)
    forgetful = type("Forgetful", (Ours,), {"training_step": Plain.training_step})
    with pytest.raises(RuntimeError, match=r"Forgetful\.training_step never asks the objective"):
        fit(forgetful("vat"))
    away = Ours("vat")
    away.objective.to("meta")
    away._trainer = trainer()
    with pytest.raises(ValueError, match="the batch is on cpu and the objective's model on meta"):
        away.training_step(next(iter(batches())), 0)


@pytest.mark.long
def test_a_compiled_module_is_refused_and_compiled_parts_work() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(RuntimeError, match="compile the parts of the model"):
            fit(torch.compile(Ours("vat"), backend="aot_eager"))
        expected = fit(Ours("smart"))
        parts = Ours("smart")
        parts.model[3].compile(backend="aot_eager")
        torch.testing.assert_close(fit(parts), expected, rtol=0, atol=1e-6)


SCRIPT = """
import os
from pathlib import Path
from test_lightning import RECIPES, Ours, batches, fit, weights
folder = Path({folder!r})
rank = int(os.environ["RANK"])

def run(name, path=None, epochs=1):
    module = Ours(name, epochs=True)
    mine = batches(4, 24, slice(rank, None, 2))
    fit(module, mine, path, strategy="ddp", devices=2, use_distributed_sampler=False, max_epochs=epochs)
    return module

for name in RECIPES:
    if name not in ("zero", "vat"):
        module = run(name)
        torch.save(weights(module), folder / f"{{name}}-{{rank}}.pt")
        if name == "free_at":
            module.run.save_checkpoint(folder / "half.ckpt")
            again, whole = run(name, folder / "half.ckpt", 2), run(name, epochs=2)
            assert torch.equal(weights(again), weights(whole))
            mine, theirs = again.objective.state_dict(), whole.objective.state_dict()
            assert all(torch.equal(mine[key], theirs[key]) for key in mine)
try:
    run("smart" if rank else "salt")
except ValueError as error:
    (folder / f"refused-{{rank}}.txt").write_text(str(error))
"""


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    (folder / "run.py").write_text(PATHS + SCRIPT.format(folder=str(folder)))
    torchrun(folder / "run.py")
    return folder


# Finite differences divide the rounding of sums in another order by their small step: in float32 they are 6e-5 apart here.
@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in even("0", "2", 16) if name != "salt_finite"])
def test_two_processes_equal_one(name: str, two: Path) -> None:
    """Process 0 has the even examples of every joined batch; Lightning's own sampler would shuffle them."""
    module = Ours(name, epochs=True)
    one = fit(module, batches(8, 24), max_epochs=1)
    ranks = [torch.load(two / f"{name}-{rank}.pt") for rank in range(2)]
    torch.testing.assert_close(ranks[0], one, rtol=0, atol=1e-6)
    assert torch.equal(*ranks)
    assert (one - weights(Plain())).abs().max() > 1e-3


@pytest.mark.long
def test_processes_with_different_terms_are_refused(two: Path) -> None:
    for rank in range(2):
        assert "process 0 has salt at" in (two / f"refused-{rank}.txt").read_text()
