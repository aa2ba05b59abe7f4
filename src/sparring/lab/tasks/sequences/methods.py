"""The competitors on digit sequences: masks on the recurrent connection, perturbed inputs, and their controls."""

from accelerate import PartialState
from torch import nn

import sparring as sp

from ....recipes import ramp_up
from ...errors import unknown
from ...task import Data, Method, Setting, Trainable, Value


def plain(model: nn.Module, setting: Setting, data: Data) -> Trainable:
    """Cross entropy and nothing else."""
    return sp.Objective(model, sp.cross_entropy)


def variational(model: nn.Module, setting: Setting, data: Data) -> Trainable:
    """One random mask per example, the same at every time step; divided by the keep rate, or by its own active share."""
    if setting["masks"] == "keep":
        return sp.recipes.variational_dropout(model, sp.cross_entropy, at="lstm", keep=setting["keep"])
    player = sp.Bernoulli(setting["keep"], rescale=setting["masks"])
    return sp.Objective(model, sp.cross_entropy, sp.Term(sp.Recurrent("lstm"), player, replaces=1.0))


def expectation(model: nn.Module, setting: Setting, data: Data) -> Trainable:
    """Random mask against none."""
    return sp.recipes.expectation_linear(
        model, sp.cross_entropy, at="lstm", keep=setting["keep"], weight=setting["weight"]
    )


def fraternal(model: nn.Module, setting: Setting, data: Data) -> Trainable:
    """Two random masks against each other."""
    return sp.recipes.fraternal_dropout(
        model, sp.cross_entropy, at="lstm", keep=setting["keep"], weight=setting["weight"]
    )


def adversarial_dropout(model: nn.Module, setting: Setting, data: Data, at: str | sp.Mask = "lstm") -> sp.Objective:
    """The worst mask within a share of `flips`; the weight grows over the first `ramp` of all updates."""
    together = setting["batch"] * PartialState().num_processes
    updates = setting["epochs"] * max(1, len(data.train) // together)
    weight = (
        ramp_up(setting["weight"], max(1, round(setting["ramp"] * updates))) if setting["ramp"] else setting["weight"]
    )
    if setting["penalty"] not in PENALTIES:
        raise unknown("penalty", setting["penalty"], PENALTIES)
    return sp.recipes.adversarial_dropout(
        model,
        sp.cross_entropy,
        at=at,
        ball=sp.Flips(setting["flips"]),
        steps=setting["steps"],
        penalty=PENALTIES[setting["penalty"]],
        weight=weight,
    )


def last_state(model: nn.Module, setting: Setting, data: Data) -> Trainable:
    """The worst mask of the last hidden state: adversarial dropout as it was before."""
    return adversarial_dropout(model, setting, data, sp.Mask("last", keep=1.0))


def dropout_and_vat(model: nn.Module, setting: Setting, data: Data) -> Trainable:
    """The worst mask and the worst input, on one clean pass."""
    return adversarial_dropout(model, setting, data) + vat(model, setting, data)


def adversarial(model: nn.Module, setting: Setting, data: Data) -> Trainable:
    """The loss at the worst input of an L2 ball."""
    return sp.recipes.adversarial_training(model, sp.cross_entropy, ball=sp.L2(setting["radius"]))


def vat(model: nn.Module, setting: Setting, data: Data) -> sp.Objective:
    """KL to the worst input of an L2 ball, labels unseen."""
    return sp.recipes.vat(model, sp.cross_entropy, ball=sp.L2(setting["radius"]), start=setting["start"])


def salt(model: nn.Module, setting: Setting, data: Data) -> Trainable:
    """VAT's ball, with the model differentiating through the opponent's ascent."""
    return sp.recipes.salt(model, sp.cross_entropy, ball=sp.L2(setting["radius"]), steps=setting["steps"])


# The paper charges JS; its released code KL(adversarial || clean), and divides random masks by their active share.
PENALTIES = {"js": sp.js, "kl": sp.kl, "reverse_kl": sp.reverse_kl}

# Section 5.1 and appendix 4: drop rate .1 for the random masks, delta .03, JS, weight 1; the ramp over 50 epochs is the
# released code's. `floor(delta * 64)` leaves one flip only at tiny, so the share is larger there.
MASKS: dict[str, Value] = {"keep": 0.9, "weight": 1.0}
ADD: dict[str, Value] = {"flips": 0.03, "weight": 1.0, "ramp": 0.5, "penalty": "js", "steps": 1}
TWICE: dict[str, Value] = {**ADD, "steps": 2}
VAT: dict[str, Value] = {"radius": 0.5, "start": 1.0}
SCALED: dict[str, dict[str, Value]] = {"tiny": {"flips": 0.1}, "paper": {"ramp": 50 / 250}}

METHODS: tuple[Method, ...] = (
    Method("plain", "cross entropy, no dropout", plain),
    Method(
        "variational_dropout", "a random mask on the recurrent connection", variational, {"keep": 0.9, "masks": "keep"}
    ),
    Method("expectation_linear", "full network against a random mask", expectation, MASKS),
    Method("fraternal_dropout", "two random masks against each other", fraternal, MASKS),
    Method("adversarial_dropout", "the worst mask, K = 1", adversarial_dropout, ADD, SCALED),
    Method("adversarial_dropout_k2", "the worst mask, K = 2", adversarial_dropout, TWICE, SCALED),
    Method("adversarial_dropout_last", "the worst mask of the last hidden state", last_state, ADD, SCALED),
    Method(
        "adversarial_dropout_vat",
        "the worst mask, K = 2, and the worst input",
        dropout_and_vat,
        {**TWICE, **VAT},
        SCALED,
    ),
    Method("adversarial_training", "loss at the worst input nearby", adversarial, {"radius": 0.5}),
    Method("vat", "KL to the worst input nearby", vat, VAT),
    Method("salt", "VAT with a differentiated opponent", salt, {"radius": 0.5, "steps": 1}),
)
