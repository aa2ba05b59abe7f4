"""Recommending films from likes: the collaborative-filtering task of "Learnable Bernoulli Dropout" (section 3.3).

A model sees what its users liked and ranks everything else for users it never saw (strong generalisation). The seed
draws the split too, so several seeds are several splits. Targets of the paper on ML-20M, NDCG@100: SIVAE with learned
Bernoulli dropout 43.01, VAE with dropout 42.63, VampPrior 42.56, IAF 42.37, DAE 41.92, CDAE 41.80, SLIM 40.10, SIVAE
with Concrete 39.90, with Gaussian 38.69, WMF 38.60, VAE without dropout 38.53.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor, nn

from ...metrics.ranking import evaluate_ranking
from ...nn import BernoulliDropout, ConcreteDropout, GaussianDropout
from ..data.interactions import Judged, implicit_feedback, strong_split
from ..data.ratings.ratings import named_ratings
from ..models.recommenders import EASE, SLIM, WMF, Recommender
from ..models.vae import CDAE, DAE, SIVAE, VAE, Annealing, Rows
from ..models.vae.masks import Learned
from ..report.figures import Figure, curves, histogram
from ..task import Data, Method, Setting, Split, Task, Value


class AnnealedBound(nn.Module):
    """The mean bound of a batch with beta on its ramp; the count of updates is a buffer, so resumed runs go on with it.

    Args:
        model: any of the autoencoders.
        beta: the schedule.
    """

    update_each_loss = False
    updates: Tensor

    def __init__(self, model: nn.Module, beta: Annealing) -> None:
        super().__init__()
        self.model, self.beta = model, beta
        self.register_buffer("updates", torch.zeros((), dtype=torch.long))

    @property
    def diagnostics(self) -> dict[str, float]:
        """beta, and where the learned keep rates lie."""
        notes = {"beta": self.beta(int(self.updates))}
        if isinstance(self.model, SIVAE):
            keep = self.model.dropout.keep.detach()
            notes |= {"keep/low": float(keep.min()), "keep/mean": float(keep.mean()), "keep/high": float(keep.max())}
        return notes

    def steps(self, inputs: Rows, targets: Any = None) -> Iterator[Tensor]:
        """One loss per batch."""
        yield self.model(inputs, self.beta(int(self.updates))).mean()
        self.updates += 1


class Fitted(nn.Module):
    """A linear recommender that has been fitted already, as a model without parameters."""

    def __init__(self, recommender: Recommender, train: csr_array) -> None:
        super().__init__()
        self.recommender = recommender.fit(train)

    def scores(self, fold_in: csr_array) -> np.ndarray:
        return self.recommender.scores(fold_in)


def bound(model: nn.Module, setting: Setting, data: Data) -> AnnealedBound:
    """Eq. 4 or 6 with beta growing from 0 to `beta` over the share `anneal` of all updates."""
    updates = setting["epochs"] * max(1, len(data.train) // setting["batch"])
    return AnnealedBound(model, Annealing(round(setting["anneal"] * updates), setting["beta"]))


def likes(setting: Setting) -> csr_array:
    """The users x items matrix: generated at `tiny`, else the log that `ratings` names, binarised as published."""
    if setting["ratings"]:
        log = named_ratings(setting.data, *setting["ratings"].split())
        return implicit_feedback(log, setting["min_rating"], setting["min_user_items"]).matrix
    rng = np.random.default_rng(0)
    taste = rng.dirichlet(np.full(5, 0.2), 240) @ rng.dirichlet(np.full(150, 0.1), 5)  # five genres, each its films
    drawn = np.log(taste + 1e-4) + rng.gumbel(size=taste.shape)  # the 20 largest are 20 draws without replacement
    return csr_array((drawn >= np.sort(drawn, axis=1)[:, [-20]]).astype(np.float32))


def load(setting: Setting) -> Data:
    """Users split by the run's seed."""
    split = strong_split(likes(setting), setting["validation_users"], setting["test_users"], setting.seed)
    return Data(
        train=Split(torch.arange(split.train.shape[0]), split.train, cut),
        validation=judged(split.validation),
        test=judged(split.test),
    )


def cut(ids: Tensor, matrix: csr_array) -> tuple[Rows, None]:
    """A batch of sparse rows; this is where the matrix stops being one."""
    return Rows.of(matrix, ids), None


def judged(users: Judged) -> Split:
    """New users, with what they show and what is held out as the target."""
    return Split(torch.arange(users.fold_in.shape[0]), users)


def build(setting: Setting, data: Data) -> nn.Module:
    """The autoencoder or the fitted linear model that the setting's `model` names."""
    train: csr_array = data.train.targets
    users, items = train.shape
    sizes = {"hidden": setting["hidden"], "latent": setting["latent"]}
    kind, drop = setting["model"], setting["dropout"]

    def sivae(layer: Learned) -> SIVAE:
        return SIVAE(items, layer, extra=setting["extra_masks"], estimator=setting["estimator"], **sizes)

    makers = {
        "vae": lambda: VAE(items, dropout=drop, **sizes),
        "vamp": lambda: VAE(items, dropout=drop, pseudo_users=setting["pseudo_users"], **sizes),
        "iaf": lambda: VAE(items, dropout=drop, flow_steps=setting["flow_steps"], **sizes),
        "dae": lambda: DAE(items, setting["latent"], drop),
        "cdae": lambda: CDAE(items, users, setting["latent"], drop),
        "sivae-bernoulli": lambda: sivae(BernoulliDropout(items, keep=1 - drop)),
        "sivae-concrete": lambda: sivae(ConcreteDropout(items, p=drop)),
        "sivae-gaussian": lambda: sivae(GaussianDropout(items, p=drop, learn=True)),
        "wmf": lambda: Fitted(WMF(setting["factors"], alpha=setting["confidence"], seed=setting.seed), train),
        "slim": lambda: Fitted(SLIM(setting["penalty"], setting["l1"]), train),
        "ease": lambda: Fitted(EASE(setting["penalty"]), train),
    }
    return makers[kind]()


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


# Section 3.3 and Liang et al. 2018: 600 tanh units, 200 latent, dropout .5, Adam 1e-3, batch 500, beta from 0 to 1 over
# the training with the best epoch kept; 500 pseudo-users.
PAPER: dict[str, Value] = {
    "ratings": "movielens/ml-20m/ratings.csv",
    "min_rating": 4.0,
    "min_user_items": 5,
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
SMALL: dict[str, Value] = {
    **PAPER,
    "ratings": "movielens/ml-100k/u.data",
    "validation_users": 100,
    "test_users": 200,
    "pseudo_users": 50,
    "epochs": 60,
    "batch": 100,
}
TINY: dict[str, Value] = {
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

METHODS = (
    Method("vae-drop", "VAE, input dropout", bound),
    Method("vae", "VAE without dropout", bound, {"dropout": 0.0}),
    Method("vamp-drop", "VAE with VampPrior, input dropout", bound, {"model": "vamp"}),
    Method("vamp", "VAE with VampPrior", bound, {"model": "vamp", "dropout": 0.0}),
    Method("iaf-drop", "VAE with inverse autoregressive flow, input dropout", bound, {"model": "iaf"}),
    Method("iaf", "VAE with inverse autoregressive flow", bound, {"model": "iaf", "dropout": 0.0}),
    Method("dae", "denoising autoencoder", bound, {"model": "dae"}),
    Method("cdae", "collaborative denoising autoencoder", bound, {"model": "cdae"}),
    Method("sivae-bernoulli", "SIVAE, dropout learned by ARM", bound, {"model": "sivae-bernoulli"}),
    Method("sivae-concrete", "SIVAE, Concrete dropout", bound, {"model": "sivae-concrete"}),
    Method("sivae-gaussian", "SIVAE, Gaussian dropout", bound, {"model": "sivae-gaussian"}),
    Method(
        "wmf",
        "weighted matrix factorisation",
        None,
        {"model": "wmf", "epochs": 0, "factors": 200, "confidence": 10.0},
        {"small": {"factors": 20, "confidence": 5.0}, "tiny": {"factors": 8, "confidence": 5.0}},
    ),
    Method("slim", "sparse linear method", None, {"model": "slim", "epochs": 0, "penalty": 0.01, "l1": 0.5}),
    Method(
        "ease",
        "linear autoencoder in closed form",
        None,
        {"model": "ease", "epochs": 0, "penalty": 500.0},
        {"small": {"penalty": 400.0}, "tiny": {"penalty": 100.0}},
    ),
)

TASKS = (
    Task(
        name="movielens",
        summary="recommend films to new users from their likes",
        score="ndcg@100",
        better="higher",
        scales={"tiny": TINY, "small": SMALL, "paper": PAPER},
        methods=METHODS,
        load=load,
        build=build,
        evaluate=evaluate,
        figures=figures,
        baseline="vae-drop",
        paper="Learnable Bernoulli Dropout for Bayesian Deep Learning, section 3.3 and table 2",
    ),
)
