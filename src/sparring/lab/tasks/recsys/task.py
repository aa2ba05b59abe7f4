"""Recommending from likes: the collaborative-filtering tasks of "Learnable Bernoulli Dropout" (section 3.3, table 2).

A model sees what its users liked and ranks everything else for users it never saw (strong generalisation). The seed
draws the split too, so several seeds are several splits. The paper's figures stand in `docs/papers/sivae.md`.
"""

import torch
from torch import nn

from ....metrics.ranking import evaluate_ranking
from ...data.interactions import Judged
from ...models.vae import SIVAE, Rows
from ...report.figures import Figure, curves, histogram
from ...task import Data, Setting, Split, Task, Value
from .likes import load
from .networks import METHODS, build


def evaluate(model: nn.Module, split: Split, setting: Setting) -> dict[str, float]:
    """Recall@20, Recall@50 and NDCG@100 in percent."""
    users: Judged = split.targets
    report = evaluate_ranking(model.scores, users.fold_in, users.held_out)  # type: ignore[arg-type]
    return {name: 100 * value for name, value in report.means.items()}


def figures(model: nn.Module, data: Data, setting: Setting) -> list[Figure]:
    """Where dropout is learned: keep rates of rare, middling and popular items, and the bound against V."""
    if not isinstance(model, SIVAE):
        return []
    popularity = torch.as_tensor(data.train.targets.count_nonzero(axis=0)).argsort()
    thirds = model.dropout.keep.detach().expand(len(popularity))[popularity].tensor_split(3)
    counts = [0, 1, 2, 4, 8, 16]
    bounds = model.tightness(Rows.of(data.validation.targets.fold_in), counts)
    return [
        histogram("Learned keep rates", "keep rate", dict(zip(("rare", "middling", "popular"), thirds))),
        curves("Bound of validation users", "extra masks V", counts, "negative bound, nats", {"SIVAE": bounds}),
    ]


Values = dict[str, Value]

# Section 3.3 and Liang et al. 2018: 600 tanh units, 200 latent, dropout .5, Adam 1e-3, batch 500, beta from 0 to 1 over
# the training with the best epoch kept; 500 pseudo-users; likes are ratings of 4 and more, users have 5 of them; 10,000
# users each to validate and test, 200 epochs (ML-20M).
PAPER: Values = {
    "ratings": "movielens/ml-20m/ratings.csv",
    "min_rating": 4.0,
    "min_user_items": 5,
    "min_item_users": 0,
    "users": 0,
    "validation_users": 10_000,
    "test_users": 10_000,
    "model": "vae",
    "hidden": 600,
    "latent": 200,
    "dropout": 0.5,
    "beta": 1.0,
    "anneal": 1.0,
    "extra_masks": 3,
    "estimator": "arm",
    "pseudo_users": 500,
    "flow_steps": 2,
    "epochs": 200,
    "batch": 500,
    "lr": 1e-3,
}
# Section 3.3: 40,000 users each, 100 epochs. The 17,770 files of the prize, or its files joined.
NETFLIX: Values = {
    **PAPER,
    "ratings": "netflix/training_set/",
    "validation_users": 40_000,
    "test_users": 40_000,
    "epochs": 100,
}
# Section 3.3: songs with 200 listeners, listeners with 20 songs, every play counts; 50,000 users each, 100 epochs.
SONGS: Values = {
    **PAPER,
    "ratings": "million-song/train_triplets.txt",
    "min_rating": 1.0,
    "min_user_items": 20,
    "min_item_users": 200,
    "validation_users": 50_000,
    "test_users": 50_000,
    "epochs": 100,
}
SMALL: Values = {
    **PAPER,
    "ratings": "movielens/ml-100k/u.data",
    "validation_users": 100,
    "test_users": 200,
    "pseudo_users": 50,
    "epochs": 60,
    "batch": 100,
}
TINY: Values = {
    **SMALL,
    "ratings": "",
    "validation_users": 40,
    "test_users": 40,
    "hidden": 32,
    "latent": 8,
    "pseudo_users": 8,
    "epochs": 15,
    "batch": 20,
    "lr": 5e-3,
}
PART: Values = {
    "users": 20_000,
    "validation_users": 1000,
    "test_users": 2000,
    "hidden": 200,
    "latent": 64,
    "pseudo_users": 100,
    "epochs": 20,
}
LISTS = " ".join(f"movielens/ml-1m-lightgcn/{part}.txt" for part in ("train", "valid", "test"))
FILM: Values = {"validation_users": 500, "test_users": 1000, "batch": 250}

SCALES: dict[str, dict[str, Values]] = {
    "movielens": {"tiny": TINY, "small": SMALL},
    "movielens-1m": {
        "tiny": TINY,
        "small": {**SMALL, **FILM, "ratings": LISTS, "hidden": 200, "latent": 64, "pseudo_users": 100, "epochs": 20},
        "paper": {**PAPER, **FILM, "ratings": "movielens/ml-1m/ratings.dat"},
    },
    "movielens-20m": {"tiny": TINY, "small": {**PAPER, **PART}, "paper": PAPER},
    "netflix": {"tiny": TINY, "small": {**NETFLIX, **PART}, "paper": NETFLIX},
    "million-song": {"tiny": TINY, "small": {**SONGS, **PART, "min_item_users": 50}, "paper": SONGS},
    "ratings": {"tiny": TINY, "small": {**SMALL, "ratings": "ratings.csv"}},
}
SUMMARIES = {
    "movielens": "recommend films to new users from their likes (MovieLens 100K)",
    "movielens-1m": "the same on MovieLens 1M, native ratings or lists of likes",
    "movielens-20m": "the same on MovieLens 20M, the paper's first data set",
    "netflix": "the same on the Netflix Prize",
    "million-song": "recommend songs from play counts (Million Song)",
    "ratings": "recommend from your own log: --data DIR with a ratings.csv, or --set ratings=FILE",
}

TASKS = tuple(
    Task(
        name=name,
        summary=summary,
        score="ndcg@100",
        better="higher",
        scales=SCALES[name],
        methods=METHODS,
        load=load,
        build=build,
        evaluate=evaluate,
        figures=figures,
        baseline="vae-drop",
        paper="Learnable Bernoulli Dropout for Bayesian Deep Learning, section 3.3 and table 2",
    )
    for name, summary in SUMMARIES.items()
)
