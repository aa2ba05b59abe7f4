"""The competitors on language models: what is dropped, and what is charged for the difference it makes."""

from typing import Any

from accelerate import PartialState
from torch import nn

import sparring as sp

from ...models.language import AWDLSTM, VocabularyHead
from ...task import Data, Method, Setting, Trainable, Value


def head_of(model: nn.Module, setting: Setting) -> VocabularyHead:
    """The output layer with the setting's activation regularisers."""
    assert isinstance(model, AWDLSTM)
    return VocabularyHead(model, setting["alpha"], setting["beta"])


def states(reading: Any) -> Any:
    """What losses and penalties compare."""
    return reading.outputs


def last(setting: Setting) -> str:
    """The name of the last layer."""
    return f"rnns.{setting['layers'] - 1}"


def weight(setting: Setting, data: Data) -> Any:
    """The penalty's weight, grown over the first `ramp` epochs."""
    assert data.text is not None
    together = setting["batch"] * PartialState().num_processes
    updates = round(setting["ramp"] * len(data.text) / (together * setting["window"]))
    return sp.recipes.ramp_up(setting["weight"], updates) if updates else setting["weight"]


def plain(model: nn.Module, setting: Setting, data: Data) -> Trainable:
    """AWD-LSTM's own training."""
    return sp.Objective(model, head_of(model, setting).loss, outputs=states)


def variational(model: nn.Module, setting: Setting, data: Data) -> Trainable:
    """A random mask on the recurrent connection of every layer, one a row, instead of dropped weights."""
    head, site = head_of(model, setting), sp.Recurrent("rnns.*")
    return sp.recipes.variational_dropout(model, head.loss, at=site, keep=setting["keep"], outputs=states)


def expectation(model: nn.Module, setting: Setting, data: Data) -> Trainable:
    """The recurrent weights of the last layer whole against dropped."""
    head, site = head_of(model, setting), sp.RecurrentWeights(last(setting))
    return sp.recipes.expectation_linear(
        model, head.loss, at=site, penalty=head.squared_error, weight=weight(setting, data), outputs=states
    )


def fraternal(model: nn.Module, setting: Setting, data: Data) -> Trainable:
    """Two passes in which every mask is drawn anew."""
    head, site = head_of(model, setting), sp.RecurrentWeights(last(setting))
    return sp.recipes.fraternal_dropout(
        model, head.loss, at=site, penalty=head.squared_error, weight=weight(setting, data), outputs=states
    )


def adversarial_weights(model: nn.Module, setting: Setting, data: Data) -> Trainable:
    """The worst mask of the last layer's recurrent weights, one for the batch, `delta` flips in every row."""
    return adversarial(model, setting, data, sp.RecurrentWeights(last(setting), keep=1.0))


def adversarial_states(model: nn.Module, setting: Setting, data: Data) -> Trainable:
    """The worst mask of the last layer's recurrent connection, one for each row of the batch."""
    return adversarial(model, setting, data, sp.Recurrent(last(setting), keep=1.0))


def adversarial(model: nn.Module, setting: Setting, data: Data, at: Any) -> Trainable:
    """Every other mask is drawn anew in the adversarial pass, so the search may start at the full mask (appendix 6)."""
    head = head_of(model, setting)
    return sp.recipes.adversarial_dropout(
        model,
        head.loss,
        at=at,
        ball=sp.Flips(setting["delta"]),
        steps=setting["steps"],
        start="base",
        penalty=head.squared_error,
        weight=weight(setting, data),
        detach_clean=True,
        share_noise=False,
        outputs=states,
    )


def r_drop(model: nn.Module, setting: Setting, data: Data) -> Trainable:
    """Two passes in which every mask is drawn anew, compared by KL both ways."""
    head = head_of(model, setting)
    return sp.recipes.r_drop(model, head.loss, penalty=head.symmetric_kl, weight=weight(setting, data), outputs=states)


# The released codes drop the activation regularisers where a penalty is charged (FD: alpha = beta = 0 by default).
OFF: dict[str, Value] = {"alpha": 0.0, "beta": 0.0}
ADD: dict[str, Value] = {**OFF, "weight": 0.1, "ramp": 100.0, "delta": 0.06, "steps": 1}
SOONER: dict[str, dict[str, Value]] = {"tiny": {"ramp": 0.5}, "small": {"ramp": 4.0}}
WIDER: dict[str, dict[str, Value]] = {**SOONER, "tiny": {"ramp": 0.5, "delta": 0.1}}

METHODS: tuple[Method, ...] = (
    Method("plain", "AWD-LSTM", plain),
    Method("variational_dropout", "a random recurrent mask a row", variational, {"keep": 0.75, "drop_weights": 0.0}),
    Method("expectation_linear", "whole against dropped weights", expectation, {**OFF, "weight": 0.25, "ramp": 0.0}),
    Method("fraternal_dropout", "two draws of every mask", fraternal, {**OFF, "weight": 0.15, "ramp": 0.0}),
    Method("adversarial_dropout", "the worst mask of recurrent weights, K = 1", adversarial_weights, ADD, WIDER),
    Method("adversarial_dropout_k2", "the same, K = 2", adversarial_weights, {**ADD, "steps": 2}, WIDER),
    Method("adversarial_dropout_states", "the worst recurrent mask a row", adversarial_states, ADD, WIDER),
    Method("r_drop", "two draws of every mask, KL", r_drop, {**OFF, "weight": 1.0, "ramp": 0.0}),
)
