"""Every key of every method's diagnostics is taken by the loggers that people use, and comes back from them."""

import math
import warnings
from pathlib import Path
from typing import Any

import pytest

from methods import METHODS
from scenes import SCENES

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # the loggers' own imports
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture(scope="module")
def shown() -> dict[str, float]:
    """What all methods say on all their scenes, also beside noise and examples without labels; under the frameworks' prefix too."""
    found: dict[str, float] = {}
    for method in METHODS:
        for name in method.scenes:
            scene = SCENES[name]
            model, *batch = scene.setup()
            objective = method.build(scene, model, measure_noise_every=1)
            objective(*batch).backward()
            found |= objective.diagnostics
            if method.label_free:
                with (
                    warnings.catch_warnings()
                ):  # the second step is one that looks at players: random weights may displease it
                    warnings.simplefilter("ignore")
                    objective(*batch, unlabelled=batch[0], unlabelled_valid=batch[2])
                found |= objective.diagnostics
    assert len(found) > 100
    finite = {key: value if math.isfinite(value) else 0.0 for key, value in found.items()}
    return finite | {f"sparring/{key}": value for key, value in finite.items()}


def test_tensorboard(shown: dict[str, float], tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        for key, value in shown.items():
            writer.add_scalar(key, value, 3)
    events = EventAccumulator(str(tmp_path), size_guidance={"scalars": 0}).Reload()
    assert {key: events.Scalars(key)[0].value for key in events.Tags()["scalars"]} == close(shown)


def test_wandb_offline(shown: dict[str, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb", reason="wandb is not installed: pip install 'sparring[loggers]'")
    for folder in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(folder, str(tmp_path))
    settings = wandb.Settings(silent=True, console="off", x_disable_stats=True, x_disable_meta=True)
    run = wandb.init(mode="offline", dir=str(tmp_path), project="sparring", settings=settings)
    run.log(shown)
    kept = {key: run.summary[key] for key in shown}
    run.finish()
    assert kept == close(shown)
    assert list(tmp_path.rglob("*.wandb"))


def test_mlflow(shown: dict[str, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed: pip install 'sparring[loggers]'")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("DO_NOT_TRACK", "true")
    client = mlflow.MlflowClient(tracking_uri=tmp_path.as_uri())
    run = client.create_run(client.create_experiment("sparring")).info.run_id
    for key, value in shown.items():
        client.log_metric(run, key, value, step=3)
    assert client.get_run(run).data.metrics == close(shown)


def close(shown: dict[str, float]) -> dict[str, Any]:
    return {key: pytest.approx(value, rel=1e-6, abs=1e-12) for key, value in shown.items()}
