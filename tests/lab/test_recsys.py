"""The collaborative-filtering task: every model on generated likes, the resumable ramp, the missing data."""

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from sparring.lab.data.errors import DataError
from sparring.lab.models.vae import SIVAE, VAE, Annealing, Rows
from sparring.lab.runs.run import execute, prepare, score
from sparring.lab.tasks.recsys import TASKS, AnnealedBound, figures, likes, load
from sparring.lab.training.train import train
from sparring.metrics.ranking import evaluate_ranking

TASK = TASKS[0]


def popularity_ndcg(seed: int = 0) -> float:
    data = load(TASK.setting("vae", "tiny", seed))
    counts = torch.as_tensor(data.train.targets.sum(axis=0))
    users = data.test.targets
    report = evaluate_ranking(lambda rows: counts.expand(rows.shape[0], -1), users.fold_in, users.held_out)
    return 100 * report["ndcg@100"]


@pytest.mark.parametrize("method", [method.name for method in TASK.methods])
def test_every_model_learns_more_than_popularity(method: str) -> None:
    session = prepare(TASK.setting(method, "tiny", seed=0))
    train(session)
    figure = score(session, "test")
    assert set(figure) == {"recall@20", "recall@50", "ndcg@100"}
    assert figure["ndcg@100"] > popularity_ndcg() + 5


def test_the_seed_draws_the_split_and_nothing_else() -> None:
    first, again, other = (load(TASK.setting("vae", "tiny", seed)) for seed in (0, 0, 1))
    assert (first.test.targets.held_out != again.test.targets.held_out).nnz == 0
    assert first.train.targets.shape != other.train.targets.shape or (first.train.targets != other.train.targets).nnz
    np.testing.assert_array_equal(*(likes(TASK.setting("vae", "tiny", seed)).toarray() for seed in (0, 1)))


def test_the_ramp_is_part_of_the_state() -> None:
    bound = AnnealedBound(VAE(5, hidden=4, latent=2), Annealing(10))
    rows = Rows.of(csr_array(np.eye(5)))
    for _ in range(5):
        for loss in bound.steps(rows):
            loss.backward()
    assert bound.diagnostics["beta"] == 0.5
    resumed = AnnealedBound(VAE(5, hidden=4, latent=2), Annealing(10))
    resumed.load_state_dict(bound.state_dict())
    assert resumed.diagnostics["beta"] == 0.5


def test_a_run_folder_holds_the_figures(tmp_path: Path) -> None:
    setting = TASK.setting("sivae-bernoulli", "tiny", 0, overrides={"epochs": 3})
    result = execute(setting, tmp_path / "run")
    assert result["score"] == "ndcg@100"
    assert 0 < result["test"]["ndcg@100"] < 100
    session = prepare(setting)
    assert isinstance(session.model, SIVAE)
    rates, bounds = figures(session.model, session.data, setting)
    assert sum(len(third) for third in rates["series"].values()) == session.model.dropout.keep.numel()
    assert bounds["x"] == [0, 1, 2, 4, 8, 16]
    assert np.isfinite(bounds["series"]["SIVAE"]).all()


def test_missing_ratings_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"ml-100k/u\.data is not under"):
        load(TASK.setting("vae", "small", data=tmp_path))
