"""Sentiment of reviews with few labels: IMDB and Elec, table 2 of "Adversarial Dropout for Recurrent Neural Networks".

Test error in percent, IMDB / Elec: LSTM 7.164 / 6.155, adversarial training 6.296 / 5.652, VAT 5.914 / 5.610, variational
dropout 7.042 / 6.114, expectation-linear 6.358 / 5.734, fraternal 6.349 / 5.785, adversarial dropout on the last state
6.471 / 5.784, on the recurrent connection 6.155 / 5.622 (K = 1) and 6.005 / 5.603 (K = 2), with VAT 5.715 / 5.638 and
5.687 / 5.621.
"""

import math
from collections.abc import Mapping

from torch import Tensor, nn

import sparring as sp

from ...errors import LabError
from ...models.language import ReviewClassifier, ReviewReader
from ...models.language.head import Surprise
from ...models.language.sampled import sampled_surprise
from ...models.language.vocabulary import check_vocabulary, mark
from ...task import Data, Method, Setting, Split, Stage, Task, Trainable, Value
from ...text import Text
from .data import classified, read_on
from .methods import METHODS

PAPER_OF = "Adversarial Dropout for Recurrent Neural Networks (Park et al. 2019), table 2 and appendix 5"

# -- the first stage: a language model ---------------------------------------------------------------------------------


def build_reader(setting: Setting, data: Data) -> nn.Module:
    """The language model."""
    given = data.extra
    model = ReviewReader(given["share"], setting["size"], setting["hidden"], setting["drop"], given.get("vectors"))
    mark(model, given["vocabulary"].words)
    return model


def guess_words(model: nn.Module, setting: Setting, data: Data) -> Trainable:
    """Cross-entropy over `sampled` words (0: all of them)."""
    assert isinstance(model, ReviewReader)
    share = data.extra["share"]

    def loss(states: Tensor, targets: Tensor) -> Tensor:
        flat, words = states.flatten(0, 1), targets.flatten()
        seen = share.to(states.device)
        return sampled_surprise(flat, words, model.table, model.bias, seen, setting["sampled"]).view_as(targets).mean(1)

    return sp.Objective(model, loss, outputs=lambda reading: reading.outputs)


def perplexity(model: nn.Module, split: Split, setting: Setting) -> dict[str, float]:
    """Perplexity of the first `scored` words, over the whole vocabulary."""
    assert isinstance(model, ReviewReader)
    if setting["scored"] < 4:
        raise LabError(f"scored={setting['scored']} does not fit; it must be at least 4 words")
    text = Text(split.inputs[: setting["scored"]], setting["window"])
    columns, state, total, count = min(10, len(text) // 2), None, 0.0, 0
    for window in text.windows(columns, 0, 0):
        (tokens, state), targets = text.batch(window, columns, slice(None), state)
        reading = model(tokens, state)
        state = reading.state
        found = Surprise.apply(reading.outputs.flatten(0, 1), model.table, model.bias, targets.flatten())
        total, count = total + float(found.double().sum()), count + len(found)
    return {"perplexity": math.exp(min(total / count, 50.0)), "loss": total / count}


# -- the second stage: a classifier ------------------------------------------------------------------------------------


def build(setting: Setting, data: Data) -> nn.Module:
    """The classifier."""
    given = data.extra
    model = ReviewClassifier(
        given["share"],
        setting["size"],
        setting["hidden"],
        setting["drop"],
        given.get("vectors"),
        setting["head"],
        setting["truncate"],
    )
    mark(model, given["vocabulary"].words)
    return model


def adopt(model: nn.Module, weights: Mapping[str, Tensor], setting: Setting) -> bool:
    """Embedding and LSTM of the language model."""
    check_vocabulary(model, weights)
    kept = {name: value for name, value in weights.items() if name.startswith(("embedding.", "lstm."))}
    model.load_state_dict({**model.state_dict(), **kept})
    return False


def evaluate(model: nn.Module, split: Split, setting: Setting) -> dict[str, float]:
    """Error in percent and cross-entropy."""
    wrong, loss = 0, 0.0
    for tokens, targets in split.batches(100):
        logits = model(tokens)
        wrong += int((logits.argmax(-1) != targets).sum())
        loss += float(nn.functional.cross_entropy(logits, targets, reduction="sum"))
    return {"error": 100 * wrong / len(split), "loss": loss / len(split)}


# -- settings ----------------------------------------------------------------------------------------------------------

# What both stages must agree on. `labelled`, `tested`, `vocabulary`: 0 for all; `unlabelled`: at most so many.
COMMON: dict[str, dict[str, Value]] = {
    "tiny": {
        "labelled": 96,
        "unlabelled": 128,
        "held": 48,
        "tested": 64,
        "minimum": 1,
        "vocabulary": 0,
        "size": 16,
        "hidden": 24,
        "vectors": "",
        "drop": 0.2,
    },
    "small": {
        "labelled": 2_500,
        "unlabelled": 20_000,
        "held": 1_000,
        "tested": 5_000,
        "minimum": 2,
        "vocabulary": 15_000,
        "size": 100,
        "hidden": 256,
        "vectors": "glove/glove.6B.100d.20k.txt",
        "drop": 0.5,
    },
    "paper": {
        "labelled": 0,
        "unlabelled": 50_000,
        "held": 3_750,
        "tested": 0,
        "minimum": 2,
        "vocabulary": 0,
        "size": 256,
        "hidden": 1024,
        "vectors": "",
        "drop": 0.5,
    },
}
READING: dict[str, dict[str, Value]] = {
    "tiny": {"lr": 5e-3, "batch": 8, "epochs": 1, "window": 20, "sampled": 20, "scored": 300},
    "small": {
        "lr": 2e-3,
        "batch": 32,
        "epochs": 2,
        "window": 100,
        "sampled": 512,
        "scored": 20_000,
        "lr_decay": 0.9996,
    },
    # 100,000 steps: 531 epochs of 188 windows, since the 3,750 reviews that validate are not read
    "paper": {
        "lr": 1e-3,
        "batch": 256,
        "epochs": 531,
        "window": 400,
        "sampled": 1024,
        "scored": 50_000,
        "lr_decay": 0.9999,
    },
}
READER: dict[str, Value] = {"optimiser": "adam", "schedule": "exponential", "clip": 1.0, "clip_except": "embedding"}
CLASSIFYING: dict[str, dict[str, Value]] = {
    "tiny": {"lr": 5e-3, "batch": 16, "epochs": 3, "epoch_batches": 12, "longest": 20, "truncate": 8},
    "small": {
        "lr": 1e-3,
        "batch": 32,
        "epochs": 6,
        "epoch_batches": 100,
        "longest": 200,
        "truncate": 200,
        "lr_decay": 0.998,
    },
    "paper": {
        "lr": 5e-4,
        "batch": 64,
        "epochs": 30,
        "epoch_batches": 500,
        "longest": 0,
        "truncate": 400,
        "lr_decay": 0.9998,
    },
}
CLASSIFIER: dict[str, Value] = {**READER, "head": 30, "pretrained": True, "first_epochs": 0}
ELEC: dict[str, dict[str, Value]] = {
    "small": {"labelled": 1_000, "unlabelled": 0, "held": 250, "tested": 500, "vocabulary": 10_000},
    "paper": {"unlabelled": 200_000, "size": 512},
}


def tasks(name: str, summary: str, own: dict[str, dict[str, Value]], paper_epochs: int) -> tuple[Task, Task]:
    """Both stages over one corpus."""
    common = {scale: {**values, **own.get(scale, {})} for scale, values in COMMON.items()}
    reader = Task(
        name=f"{name}-words",
        summary=f"{summary}: the language model of the first stage",
        score="perplexity",
        better="lower",
        scales={scale: {**READER, **common[scale], **READING[scale]} for scale in common},
        methods=(Method("plain", "guess the next word", guess_words),),
        load=lambda setting: read_on(setting, name),
        build=build_reader,
        evaluate=perplexity,
        paper=PAPER_OF,
    )

    def first(setting: Setting) -> Setting | None:
        """One language model for all methods and seeds; what was changed about data and sizes goes for it too."""
        if not setting["pretrained"]:
            return None
        changes = {key: value for key, value in setting.overrides.items() if key in common[setting.scale]}
        if setting["first_epochs"]:
            changes["epochs"] = setting["first_epochs"]
        return reader.setting("plain", setting.scale, 0, setting.data, changes)

    scales = {scale: {**CLASSIFIER, **common[scale], **CLASSIFYING[scale]} for scale in common}
    scales["paper"]["epochs"] = paper_epochs
    classifier = Task(
        name=name,
        summary=f"{summary}: pre-trained LSTM, labelled and unlabelled reviews",
        score="error",
        better="lower",
        scales=scales,
        methods=METHODS,
        load=lambda setting: classified(setting, name),
        build=build,
        evaluate=evaluate,
        stage=Stage(first, adopt),
        paper=PAPER_OF,
    )
    return classifier, reader


TASKS = (
    *tasks("imdb", "sentiment of film reviews", {}, 30),
    *tasks("elec", "sentiment of reviews of electronics", ELEC, 20),
)
