"""The methods of Table 2 on any of the attention models, and what the paper leaves to future work: VAT and SALT."""

from collections.abc import Callable
from typing import Any

from torch import nn

import sparring as sp

from ...task import Data, Method, Setting, Trainable, Value

Recipe = Callable[[nn.Module, Setting], Trainable]


def method(name: str, summary: str, recipe: Recipe, **settings: Value) -> Method:
    """A method whose objective needs the model and the setting only."""

    def objective(model: nn.Module, setting: Setting, data: Data) -> Trainable:
        return recipe(model, setting)

    return Method(name, summary, objective, settings)


def at_scores(recipe: Callable[..., Trainable], **more: Any) -> Recipe:
    """One of the recipes whose radius is set, at the attention layer."""
    return lambda model, setting: recipe(model, sp.cross_entropy, at="attention", ball=sp.L2(setting["radius"]), **more)


def ball_at(recipe: Callable[..., Trainable], site: Callable[[], Any]) -> Recipe:
    """One of the recipes that take a ball, at any site."""
    return lambda model, setting: recipe(model, sp.cross_entropy, at=site(), ball=sp.L2(setting["radius"]))


def iat(model: nn.Module, setting: Setting) -> Trainable:
    return sp.recipes.attention_iat(
        model, sp.cross_entropy, at="attention", ball=sp.L2(setting["radius"]), reading=setting["reading"]
    )


def word_iat(model: nn.Module, setting: Setting) -> Trainable:
    return sp.recipes.word_iat(
        model,
        sp.cross_entropy,
        ball=sp.L2(setting["radius"]),
        neighbours=setting["neighbours"],
        refresh=setting["refresh"],
    )


def plain(model: nn.Module, setting: Setting) -> Trainable:
    return sp.Objective(model, sp.cross_entropy)


METHODS = (
    method("plain", "cross entropy (vanilla)", plain),
    method(
        "attention_noise", "random noise on the attention scores", at_scores(sp.recipes.attention_noise), radius=5.0
    ),
    method("attention_at", "adversarial attention scores", at_scores(sp.recipes.attention_at), radius=5.0),
    method(
        "attention_at_released",
        "attention scores that lower the loss, as the released code places them",
        at_scores(sp.recipes.attention_at, direction="released"),
        radius=5.0,
    ),
    method("attention_iat", "adversarial differences of attention, rows summed", iat, radius=5.0, reading="row_sum"),
    method("attention_iat_per_word", "the same, a ball for each word", iat, radius=1.0, reading="per_word"),
    method(
        "attention_vat",
        "KL to the worst attention scores",
        ball_at(sp.recipes.vat, lambda: sp.Scores("attention")),
        radius=5.0,
    ),
    method(
        "attention_salt",
        "SALT on the attention scores",
        ball_at(sp.recipes.salt, lambda: sp.Scores("attention")),
        radius=5.0,
    ),
    method(
        "word_at",
        "adversarial word vectors",
        ball_at(sp.recipes.adversarial_training, lambda: sp.Words("embedding")),
        radius=0.5,
    ),
    method("word_iat", "word vectors moved towards other words", word_iat, radius=0.5, neighbours=10, refresh=100),
)
