"""The collaborative-filtering task: every model on generated likes, the resumable ramp, the missing data."""

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from sparring.lab.data.errors import DataError
from sparring.lab.errors import LabError
from sparring.lab.models.vae import SIVAE, VAE, Annealing, Rows
from sparring.lab.runs.run import execute, prepare, score
from sparring.lab.task import Data, Split
from sparring.lab.tasks.recsys.likes import cut, likes, load
from sparring.lab.tasks.recsys.networks import AnnealedBound
from sparring.lab.tasks.recsys.task import TASKS, figures
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


NAMES = [entry.name for entry in TASKS]
METHODS_OF_TABLE_2 = {
    "sivae-bernoulli", "sivae-gaussian", "sivae-concrete", "vamp-drop", "vamp", "iaf-drop", "iaf", "vae-drop", "vae", "dae",
    "wmf", "slim", "cdae",
}  # fmt: skip


def test_every_data_set_of_table_2_is_a_task_with_all_its_methods() -> None:
    assert {"movielens", "movielens-1m", "movielens-20m", "netflix", "million-song", "ratings"} == set(NAMES)
    for entry in TASKS:
        assert METHODS_OF_TABLE_2 | {"ease"} == {method.name for method in entry.methods}


# Section 3.3 of the paper: users each to validate and to test, epochs, thresholds; Liang et al. 2018: the network.
@pytest.mark.parametrize(
    ("name", "users", "epochs", "thresholds"),
    [
        ("movielens-20m", 10_000, 200, (4, 5, 0)),
        ("netflix", 40_000, 100, (4, 5, 0)),
        ("million-song", 50_000, 100, (1, 20, 200)),
    ],
)
def test_the_papers_settings(name: str, users: int, epochs: int, thresholds: tuple[int, int, int]) -> None:
    (entry,) = (entry for entry in TASKS if entry.name == name)
    setting = entry.setting("vae-drop", "paper")
    assert (setting["validation_users"], setting["test_users"], setting["epochs"]) == (users, users, epochs)
    assert tuple(setting[key] for key in ("min_rating", "min_user_items", "min_item_users")) == thresholds
    network = {"hidden": 600, "latent": 200, "dropout": 0.5, "batch": 500, "lr": 1e-3, "optimiser": "adam", "beta": 1.0}
    assert {key: setting[key] for key in network} == network
    assert entry.setting("vamp", "paper")["pseudo_users"] == 500


@pytest.mark.long
def test_the_papers_network_takes_a_step_on_a_catalogue_of_20_000() -> None:
    rng = np.random.default_rng(0)
    likes = csr_array(
        (np.ones(60_000, np.float32), (rng.integers(0, 600, 60_000), rng.integers(0, 20_000, 60_000))),
        shape=(600, 20_000),
    )
    likes.data[:] = 1
    entry = next(entry for entry in TASKS if entry.name == "movielens-20m")
    for method in ("sivae-bernoulli", "vamp-drop", "iaf-drop"):
        setting = entry.setting(method, "paper")
        data = Data(Split(torch.arange(600), likes, cut), Split(torch.arange(0)))
        model = entry.build(setting, data)
        for loss in entry.method(method).objective(model, setting, data).steps(*data.train.batch(slice(0, 500))):
            loss.backward()
            assert torch.isfinite(loss.detach())


def write(folder: Path, name: str, text: str) -> Path:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return folder


def netflix_lines(film: int, users: int) -> str:
    return f"{film}:\n" + "".join(f"{user},{4 + user % 2},2005-09-06\n" for user in range(1, users + 1))


@pytest.mark.parametrize("joined", [False, True])
def test_netflix_as_single_or_joined_files(tmp_path: Path, joined: bool) -> None:
    films = {film: netflix_lines(film, 12) for film in range(1, 8)}
    if joined:
        write(tmp_path, "netflix/training_set/combined_data_1.txt", "".join(films[k] for k in range(1, 4)))
        write(tmp_path, "netflix/training_set/combined_data_2.txt", "".join(films[k] for k in range(4, 8)))
    else:
        for film, text in films.items():
            write(tmp_path, f"netflix/training_set/mv_{film:07d}.txt", text)
    entry = next(entry for entry in TASKS if entry.name == "netflix")
    small = {"validation_users": 2, "test_users": 3}
    data = load(entry.setting("vae", "small", data=tmp_path, overrides=small))
    assert data.train.targets.shape == (7, 7)
    assert data.test.targets.held_out.nnz == 3


def test_a_broken_line_of_netflix_is_named(tmp_path: Path) -> None:
    write(tmp_path, "netflix/training_set/mv_0000003.txt", netflix_lines(3, 4) + "12;4;2005\n")
    entry = next(entry for entry in TASKS if entry.name == "netflix")
    with pytest.raises(
        DataError, match=r"mv_0000003.txt, line 6: '12;4;2005' is not 'customer,rating,date' or 'film:'"
    ):
        load(entry.setting("vae", "small", data=tmp_path))
    write(tmp_path, "netflix/training_set/mv_0000003.txt", "12,4,2005-01-01\n")
    with pytest.raises(DataError, match="comes before the first 'film:'"):
        load(entry.setting("vae", "small", data=tmp_path))


def test_anybodys_log_with_words_for_ids(tmp_path: Path) -> None:
    rows = [f"user {u},film {i},{5 if (u + i) % 3 else 1}" for u in range(20) for i in range(12)]
    write(tmp_path, "mine.csv", "\n".join(["who,what,stars", *rows]) + "\n")
    entry = next(entry for entry in TASKS if entry.name == "ratings")
    changes = {"ratings": "mine.csv", "validation_users": 4, "test_users": 4}
    data = load(entry.setting("vae", "small", data=tmp_path, overrides=changes))
    assert data.train.targets.shape == (12, 12)
    with pytest.raises(LabError, match="leave none of 20"):
        load(entry.setting("vae", "small", data=tmp_path, overrides={**changes, "test_users": 16}))
    write(tmp_path, "mine.csv", "who,what,stars\nann,,5\n")
    with pytest.raises(DataError, match=r"mine.csv, line 2"):
        load(entry.setting("vae", "small", data=tmp_path, overrides=changes))


def test_movielens_1m_lists_are_split(data_folder: Path) -> None:
    entry = next(entry for entry in TASKS if entry.name == "movielens-1m")
    data = load(entry.setting("vae", "small", data=data_folder))
    assert data.train.targets.shape[0] == 6038 - 1500  # one of the 6,039 users likes fewer than five films
    part = load(entry.setting("vae", "small", data=data_folder, overrides={"users": 2000}))
    assert part.train.targets.shape[0] == 500
