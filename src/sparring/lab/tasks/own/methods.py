"""The competitors on the user's own data. Radii are per number, so that they mean the same at every size of input."""

import math
from collections.abc import Callable
from typing import Any

from torch import nn

import sparring as sp

from ...task import Data, Method, Setting, Trainable, Value

Recipe = Callable[..., Trainable]


def loss_of(data: Data) -> Any:
    """Cross-entropy between classes, the squared error of numbers."""
    return sp.cross_entropy if data.extra["classes"] else sp.squared_loss


def penalty_of(data: Data) -> Any:
    """How far two predictions are apart."""
    return sp.kl if data.extra["classes"] else sp.squared_error


def ball_of(radius: float, data: Data) -> sp.L2:
    """The L2 ball in which a number of an example moves by `radius` in the root mean square."""
    return sp.L2(radius * math.sqrt(data.train.inputs[0].numel()))


def plain(model: nn.Module, setting: Setting, data: Data) -> Trainable:
    """The loss and nothing else."""
    return sp.Objective(model, loss_of(data))


def at_input(recipe: Recipe, penalised: bool, noise: bool = False) -> Callable[[nn.Module, Setting, Data], Trainable]:
    """A recipe whose ball lies around the input."""

    def objective(model: nn.Module, setting: Setting, data: Data) -> Trainable:
        ball = ball_of(setting["radius"], data)
        options: dict[str, Any] = {"penalty": penalty_of(data)} if penalised else {}
        if noise:
            options["by"] = sp.Noise(ball)
        if "distance" in setting:
            options["start"] = setting["distance"]
        return recipe(model, loss_of(data), ball=ball, weight=setting["weight"], **options)

    return objective


def r_drop(model: nn.Module, setting: Setting, data: Data) -> Trainable:
    """Two draws of the model's dropout against each other."""
    penalty = sp.symmetric_kl if data.extra["classes"] else sp.squared_error
    return sp.recipes.r_drop(model, loss_of(data), penalty=penalty, weight=setting["weight"])


def adversarial_dropout(model: nn.Module, setting: Setting, data: Data) -> Trainable:
    """The worst mask of the layer `masked` within `flips` of its units."""
    penalty = sp.js if data.extra["classes"] else sp.squared_error
    return sp.recipes.adversarial_dropout(
        model,
        loss_of(data),
        at=sp.Mask(setting["masked"]),
        ball=sp.Flips(setting["flips"]),
        penalty=penalty,
        weight=setting["weight"],
    )


def noisy(model: nn.Module, setting: Setting, data: Data) -> Trainable:
    """Random noise of VAT's radius, charged as VAT charges."""
    ball = ball_of(setting["radius"], data)
    term = sp.Term(sp.Input(), sp.Noise(ball), penalty_of(data), setting["weight"], detach_clean=True)
    return sp.Objective(model, loss_of(data), term)


def around_input(radius: float, distance: float) -> tuple[Method, ...]:
    """The methods for inputs that are numbers: images and tables."""
    ball: dict[str, Value] = {"radius": radius, "weight": 1.0}
    mask: dict[str, Value] = {"masked": "dropout", "flips": 0.1, "weight": 1.0}
    return (
        Method("plain", "the loss and nothing else (with the model's dropout)", plain),
        Method("noise", "consistency under random noise: VAT's control", noisy, ball),
        Method(
            "vat",
            "consistency at the worst input nearby",
            at_input(sp.recipes.vat, True),
            {**ball, "distance": distance},
        ),
        Method("salt", "VAT with a differentiated opponent", at_input(sp.recipes.salt, True), ball),
        Method(
            "adversarial_training",
            "the loss at the worst input nearby",
            at_input(sp.recipes.adversarial_training, False),
            ball,
        ),
        Method("r_drop", "two draws of the dropout against each other", r_drop, {"weight": 1.0}),
        Method("adversarial_dropout", "the worst dropout mask", adversarial_dropout, mask),
    )


def at_words(recipe: Recipe, **options: Any) -> Callable[[nn.Module, Setting, Data], Trainable]:
    """A recipe whose ball lies around the word vectors of a sentence."""

    def objective(model: nn.Module, setting: Setting, data: Data) -> Trainable:
        return recipe(model, sp.cross_entropy, at=sp.Words(setting["at"]), ball=sp.L2(setting["radius"]), **options)

    return objective


def word_noise(model: nn.Module, setting: Setting, data: Data) -> Trainable:
    """Random word vectors nearby, charged as VAT charges."""
    term = sp.Term(sp.Words(setting["at"]), sp.Noise(sp.L2(setting["radius"])), sp.kl, detach_clean=True)
    return sp.Objective(model, sp.cross_entropy, term)


def at_scores(recipe: Recipe) -> Callable[[nn.Module, Setting, Data], Trainable]:
    """A recipe whose ball lies around the attention scores of a sentence."""

    def objective(model: nn.Module, setting: Setting, data: Data) -> Trainable:
        return recipe(model, sp.cross_entropy, at=setting["scores"], ball=sp.L2(setting["radius"]))

    return objective


WORDS: dict[str, Value] = {"at": "embedding", "radius": 0.5}
SCORES: dict[str, Value] = {"scores": "attention", "radius": 1.0}
IN_TEXT = (
    Method("plain", "cross entropy and nothing else", plain),
    Method("noise", "consistency under random word vectors: VAT's control", word_noise, WORDS),
    Method("vat", "consistency at the worst word vectors nearby", at_words(sp.recipes.vat), WORDS),
    Method("salt", "VAT with a differentiated opponent", at_words(sp.recipes.salt), WORDS),
    Method("word_at", "the loss at the worst word vectors nearby", at_words(sp.recipes.adversarial_training), WORDS),
    Method("attention_noise", "random attention scores", at_scores(sp.recipes.attention_noise), SCORES),
    Method("attention_at", "adversarial attention scores", at_scores(sp.recipes.attention_at), SCORES),
    Method("attention_iat", "adversarial differences of attention", at_scores(sp.recipes.attention_iat), SCORES),
)
