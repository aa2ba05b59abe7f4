"""The dropouts that compete: the same granularity and the same scale for all, so that rates are compared and nothing else.

Every layer multiplies by a mask of mean one: fixed and Concrete dropout divide by the keep rate, Gaussian noise has mean 1,
learnable Bernoulli dropout divides too (`rescale`), unless the paper's mode is asked for (`lbd-unscaled`: multiply by z).
A rate for each unit, or one for the layer, is the setting `granularity` for all that learn.
"""

from collections.abc import Callable

from torch import Tensor, nn

from ....estimators import ARM, DisARM
from ....losses import cross_entropy
from ....nn import BernoulliDropout, ConcreteDropout, GaussianDropout, convert
from ....objective import Objective
from ....recipes import learnable_bernoulli
from ....terms import DropoutKL
from ...errors import unknown
from ...task import Data, Method, Setting, Value

Loss = Callable[..., Tensor]
Objectives = Callable[[nn.Module, Setting, Data], Objective]
KINDS = ("fixed", "bernoulli", "concrete", "gaussian")
GRANULARITIES = ("unit", "layer")


def layer_of(kind: str, units: int, setting: Setting, channels: bool = False) -> nn.Module:
    """A dropout of `units` units; learned rates start at the setting's `drop`.

    Args:
        kind: one of `KINDS`.
        units: how many units there are.
        setting: the drop rate, how many rates a layer has, and whether Bernoulli masks are divided by the keep rate.
        channels: units are channels of feature maps.
    """
    if setting["granularity"] not in GRANULARITIES:
        raise unknown("granularity", setting["granularity"], GRANULARITIES)
    rates, p = units if setting["granularity"] == "unit" else 1, setting["drop"]
    if kind == "bernoulli":
        return BernoulliDropout(rates, keep=1 - p, rescale=setting["rescale"])
    if kind == "concrete":
        return ConcreteDropout(rates, p=p)
    if kind == "gaussian":
        return GaussianDropout(rates, p=p, learn=True)
    if kind != "fixed":
        raise unknown("dropout", kind, KINDS)
    return nn.Dropout2d(p) if channels else nn.Dropout(p)


def tied(model: nn.Module, glob: str, setting: Setting) -> None:
    """One learned rate for all the layers that the glob names."""
    convert(model, glob, tie=True, rescale=setting["rescale"])


def plain(model: nn.Module, setting: Setting, data: Data, loss: Loss = cross_entropy) -> Objective:
    """The loss, and the KL of learned dropout where there is a prior."""
    if not setting["prior_scale"]:
        return Objective(model, loss)
    return Objective(model, loss, DropoutKL(setting["prior_scale"], len(data.train)))


def learned(
    model: nn.Module, setting: Setting, data: Data, loss: Loss = cross_entropy, joint: bool = False
) -> Objective:
    """Eq. 3 and 8: the loss, the KL, and an estimated gradient for the rates."""
    estimator = {"arm": ARM(), "disarm": DisARM()}[setting["estimator"]]
    scale = setting["prior_scale"] or None
    return learnable_bernoulli(
        model,
        loss,
        estimator=estimator,
        joint=joint,
        prior_scale=scale,
        dataset_size=len(data.train),
    )


OWN: dict[str, Value] = {
    "dropout": "fixed",
    "drop": 0.5,
    "samples": 10,
    "prior_scale": 0.0,
    "estimator": "arm",
    "rescale": True,
    "granularity": "unit",
}
BAYES: dict[str, Value] = {"prior_scale": 1.0}


def rivals(fixed: Objectives, estimated: Objectives) -> tuple[Method, ...]:
    """Table 1's methods over a task's own two objectives: with a plain gradient, and with an estimated one."""
    bernoulli: dict[str, Value] = {**BAYES, "dropout": "bernoulli"}
    made: tuple[tuple[str, str, Objectives, dict[str, Value]], ...] = (
        ("regular", "fixed dropout, deterministic evaluation", fixed, {"samples": 0}),
        ("mc", "fixed dropout, Monte-Carlo evaluation", fixed, {}),
        ("lbd", "learnable Bernoulli dropout by ARM", estimated, bernoulli),
        ("lbd-disarm", "the same by DisARM", estimated, {**bernoulli, "estimator": "disarm"}),
        (
            "lbd-unscaled",
            "the same by ARM, masks not divided by the keep rate: the paper's eq. 2",
            estimated,
            {**bernoulli, "rescale": False},
        ),
        ("concrete", "Concrete dropout", fixed, {**BAYES, "dropout": "concrete"}),
        ("gaussian", "Gaussian dropout", fixed, {**BAYES, "dropout": "gaussian"}),
    )
    return tuple(Method(name, summary, objective, settings) for name, summary, objective, settings in made)
