"""The defences of the paper's tables, alone and with adversarial training (Table 6)."""

from collections.abc import Callable

from torch import nn

from ....balls import L2, Linf
from ....ensembles import (
    ADP,
    DEG,
    TRS,
    Ensemble,
    EnsembleDropout,
    LaplacePriorityDropout,
    PriorityDiversifiedDropout,
)
from ....players import PGD, FastGradient
from ....recipes.ensembles import simultaneous
from ...models.resnet import ResNet18
from ...models.small_cnn import SmallCNN
from ...task import Data, Method, Setting, Trainable, Value


def pixels(radius: float) -> Linf:
    """The ball of training and attack: L-infinity, pixels in [0, 1]."""
    return Linf(radius, box=(0, 1))


def euclidean(radius: float) -> L2:
    """The other ball of Fig. 3."""
    return L2(radius, box=(0, 1))


def intervals(setting: Setting) -> int:
    """PDD's number of intervals: 10 for three members, 20 for five (Huang et al. 2021), unless it is set."""
    return setting["intervals"] or (10 if setting["members"] <= 3 else 20)


DROPOUTS: dict[str, Callable[[Setting], nn.Module | None]] = {
    "none": lambda s: None,
    "plain": lambda s: EnsembleDropout(s["keep"], s["rescale"]),
    "diversified": lambda s: PriorityDiversifiedDropout(intervals(s), rescale=s["rescale"]),
    "laplace": lambda s: LaplacePriorityDropout(gamma=s["gamma"], rescale=s["rescale"]),
}


def build(setting: Setting, data: Data) -> nn.Module:
    """ResNet-18s of the width asked for, or small convolutional networks."""
    classes, channels, size = (data.extra[name] for name in ("classes", "channels", "size"))
    width = setting["width"]

    def network() -> nn.Module:
        if setting["architecture"] == "resnet":
            return ResNet18(classes, width, channels)
        maps = (width // 8, width // 4)
        return SmallCNN(classes, size, channels, maps, hidden=width)

    return Ensemble([network() for _ in range(setting["members"])], dropout=DROPOUTS[setting["dropout"]](setting))


def objective(model: nn.Module, setting: Setting, data: Data) -> Trainable:
    """Mean of the members' cross-entropies and the terms whose weight is not zero.

    ADP and TRS are published beside the sum of the cross-entropies: dividing by K keeps every method's step size alike.
    """
    assert isinstance(model, Ensemble)
    members, radius = len(model), setting["radius"]
    adversary = {
        "none": None,
        "fgsm": FastGradient(pixels(radius)),
        "pgd": PGD(pixels(radius), steps=10, step_size=radius / 4, start="uniform", update="sign"),
    }[setting["adversary"]]
    return simultaneous(
        model,
        ADP(setting["entropy"] / members, setting["determinant"] / members),
        DEG(setting["deg"]),
        TRS(setting["similarity"] / members, setting["smoothness"] / members, ball=pixels(setting["trs_radius"])),
        by=adversary,
        craft=setting["craft"],
    )


# FIDELITY of the weights: ADP 2 and .5, DEG .01, TRS 40 and 2.5 are those of the methods' own papers.
DEFENCES: dict[str, tuple[str, dict[str, Value]]] = {
    "adp": ("adaptive diversity promoting", {"entropy": 2.0, "determinant": 0.5}),
    "pdd": ("priority diversified dropout", {"dropout": "diversified"}),
    "lpd": ("Laplace priority dropout, the paper's mode", {"dropout": "laplace"}),
}


def trained_against(adversary: str) -> tuple[Method, ...]:
    """Adversarial training alone and with each defence."""
    prefix = "at" if adversary == "fgsm" else f"at-{adversary}"
    settings: dict[str, Value] = {"adversary": adversary}
    plain = Method(prefix, f"{adversary.upper()} adversarial training", objective, settings)
    return (
        plain,
        *(
            Method(f"{prefix}-{name}", f"{plain.summary} and {summary}", objective, {**settings, **values})
            for name, (summary, values) in DEFENCES.items()
        ),
    )


METHODS = (
    Method("plain", "members' cross-entropy and nothing else", objective),
    Method("dropout", "plain dropout, rescaled", objective, {"dropout": "plain", "rescale": True}),
    Method("dropout-unscaled", "plain dropout, not rescaled", objective, {"dropout": "plain", "keep": 0.2}),
    *(Method(name, summary, objective, values) for name, (summary, values) in DEFENCES.items()),
    Method("deg", "dispersed ensemble gradients", objective, {"deg": 0.01}),
    Method("pdd-deg", "priority diversified dropout and DEG", objective, {"dropout": "diversified", "deg": 0.01}),
    Method("trs", "transferability reduced smooth ensemble", objective, {"similarity": 40.0, "smoothness": 2.5}),
    Method("lpd-rescaled", "Laplace priority dropout, rescaled", objective, {"dropout": "laplace", "rescale": True}),
    *trained_against("fgsm"),
    *trained_against("pgd"),
    Method("at-member", "FGSM crafted on each member", objective, {"adversary": "fgsm", "craft": "member"}),
)
