"""What can be done with unlabelled images: nothing, noise, an adversary, an adversary that is seen through."""

from torch import nn

import sparring as sp

from ...task import Data, Method, Setting, Trainable, Value

HIDDEN = sp.Mask("hidden.**", keep=1.0)  # all units of the hidden layers stand in the clean pass


def plain(model: nn.Module, setting: Setting, data: Data) -> Trainable:
    """Cross entropy of the labelled images, with dropout where `keep` is below 1."""
    return sp.Objective(model, sp.cross_entropy)


def noise(model: nn.Module, setting: Setting, data: Data) -> Trainable:
    """KL to a random point at the adversary's distance."""
    by = sp.Noise(sp.L2(setting["radius"]))
    term = sp.Term(sp.Input(), by, sp.kl, setting["weight"], detach_clean=True)
    return sp.Objective(model, sp.cross_entropy, term)


def vat(model: nn.Module, setting: Setting, data: Data) -> sp.Objective:
    """KL to the worst point at `radius`, whose direction is sought at the distance `start`."""
    ball = sp.L2(setting["radius"])
    return sp.recipes.vat(model, sp.cross_entropy, ball=ball, start=setting["start"], weight=setting["weight"])


def vat_entropy(model: nn.Module, setting: Setting, data: Data) -> Trainable:
    """VAT, and the entropy of the predictions."""
    return vat(model, setting, data) + sp.Objective(model, sp.cross_entropy, sp.Entropy(setting["entropy"]))


def pgd(model: nn.Module, setting: Setting, data: Data) -> Trainable:
    """SALT's ascent, taken as a constant; the clean side is detached."""
    by = sp.PGD(sp.L2(setting["radius"]), setting["steps"], step_size(setting), setting["start"], setting["update"])
    term = sp.Term(sp.Input(), by, sp.kl, setting["weight"], detach_clean=True)
    return sp.Objective(model, sp.cross_entropy, term)


def salt(model: nn.Module, setting: Setting, data: Data) -> Trainable:
    """The same ascent, differentiated through; `detach_clean=None` cuts the leader's clean side where there are no labels."""
    return sp.recipes.salt(
        model,
        sp.cross_entropy,
        ball=sp.L2(setting["radius"]),
        steps=setting["steps"],
        step_size=step_size(setting),
        start=setting["start"],
        update=setting["update"],
        weight=setting["weight"],
        detach_clean=setting["detach_clean"],
    )


def step_size(setting: Setting) -> float | None:
    """0 stands for the player's own."""
    return setting["step_size"] or None


def adversarial_dropout(model: nn.Module, setting: Setting, data: Data) -> Trainable:
    """JS to the network under the worst mask of its hidden units, within a share of `flips`."""
    return sp.recipes.adversarial_dropout(
        model,
        sp.cross_entropy,
        at=HIDDEN,
        ball=sp.Flips(setting["flips"]),
        steps=setting["steps"],
        weight=setting["weight"],
        detach_clean=True,
    )


def random_dropout(model: nn.Module, setting: Setting, data: Data) -> Trainable:
    """JS to the network under a random mask that drops the same share of units."""
    by = sp.Bernoulli(1 - setting["flips"])
    term = sp.Term(HIDDEN, by, sp.js, setting["weight"], detach_clean=True)
    return sp.Objective(model, sp.cross_entropy, term)


def r_drop(model: nn.Module, setting: Setting, data: Data) -> Trainable:
    """Two passes under random dropout against each other."""
    return sp.recipes.r_drop(model, sp.cross_entropy, weight=setting["weight"])


ASCENT: dict[str, Value] = {"radius": 2.0, "steps": 1, "step_size": 0.0, "start": 1.0, "update": "normalised"}
SMALLER: dict[str, dict[str, Value]] = {"tiny": {"radius": 1.0}}  # 64 pixels have a third of the norm of 784
METHODS = (
    Method("plain", "cross entropy of the labelled images", plain),
    Method("dropout", "the same with dropout in the hidden layers", plain, {"keep": 0.5}),
    Method("noise", "KL to a random point nearby", noise, {"radius": 2.0, "weight": 1.0}, SMALLER),
    Method("vat", "KL to the worst point nearby", vat, {"radius": 2.0, "start": 10.0, "weight": 1.0}, SMALLER),
    Method(
        "vat_entropy",
        "VAT, and be sure of what is predicted",
        vat_entropy,
        {"radius": 2.0, "start": 10.0, "weight": 1.0, "entropy": 1.0},
        SMALLER,
    ),
    Method("pgd", "SALT's ascent, not differentiated", pgd, {**ASCENT, "weight": 1.0}, SMALLER),
    Method("salt", "the ascent differentiated", salt, {**ASCENT, "weight": 1.0, "detach_clean": None}, SMALLER),
    Method(
        "adversarial_dropout",
        "the worst mask of the hidden units",
        adversarial_dropout,
        {"flips": 0.05, "steps": 1, "weight": 1.0},
    ),
    Method("random_dropout", "a random mask of the hidden units", random_dropout, {"flips": 0.05, "weight": 1.0}),
    Method("r_drop", "two random masks against each other", r_drop, {"keep": 0.7, "weight": 1.0}),
)
