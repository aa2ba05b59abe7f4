"""The twelve recommenders of Table 2 and EASE: what is trained, and on which bound."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor, nn

from ....nn import BernoulliDropout, ConcreteDropout, GaussianDropout
from ...models.recommenders import EASE, SLIM, WMF, Recommender
from ...models.vae import CDAE, DAE, SIVAE, VAE, Annealing, Rows
from ...models.vae.masks import Learned
from ...task import Data, Method, Setting


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
