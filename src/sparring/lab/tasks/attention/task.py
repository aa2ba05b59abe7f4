"""Attention trained against perturbations: sentiment (SST) and question answering (bAbI 1 to 3) with the BiRNN models.

The tasks of "Attention Meets Perturbations" (table 2): how well the model predicts, and how far its attention agrees with
gradient importance. Targets of the paper, score / correlation: SST 79.27 / .652 vanilla, 81.90 / .531 random noise on the
attention, 81.72 / .852 attention AT, 82.20 / .876 attention iAT, 79.61 / .647 Word AT, 79.57 / .643 Word iAT; bAbI 1
99.9 / .714 vanilla and 100 / .821 iAT; bAbI 2 45.1 / .459 and 85.4 / .710; bAbI 3 52.0 / .387 and 57.1 / .589.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import sparring as sp

from ....metrics.attention import agreement, explain
from ...models.birnn import PairSequence, SingleSequence
from ...report.figures import Figure, sentences
from ...task import Data, Method, Setting, Split, Task, Trainable, Value
from .data import load_babi, load_sst


def build(setting: Setting, data: Data) -> nn.Module:
    """The single-sequence model for sentences, the pair model for questions."""
    model = PairSequence if isinstance(data.train.inputs, tuple) else SingleSequence
    return model(
        len(data.extra["vocabulary"]), setting["size"], setting["features"], data.extra["classes"],
        setting["encoder"], setting["attention"], data.extra.get("vectors"),
    )  # fmt: skip


def evaluate(model: nn.Module, split: Split, setting: Setting) -> dict[str, float]:
    """Accuracy, F1 of the second class, and the agreement of attention with both gradient importances."""
    predicted, right = [], []
    for inputs, targets in split.batches(200):
        predicted.append((model(*inputs) if isinstance(inputs, tuple) else model(inputs)).argmax(-1))
        right.append(targets)
    guess, truth = torch.cat(predicted), torch.cat(right)
    hits = int(((guess == 1) & (truth == 1)).sum())
    figures = {
        "f1": 200 * hits / max(1, int((guess == 1).sum() + (truth == 1).sum())),
        "accuracy": 100 * float((guess == truth).double().mean()),
    }
    for short, definition in (("", "probability"), ("_loss", "loss")):
        seen = agreement(
            model,
            (inputs for inputs, _ in split.batches(100)),
            at="embedding",
            attention="attention",
            definition=definition,
        )
        figures |= {f"pearson{short}": seen.pearson, f"kendall{short}": seen.kendall}
    return figures


def draw(model: nn.Module, data: Data, setting: Setting) -> list[Figure]:
    """Attention and gradient over the first sentences of the test split (Fig. 3)."""
    inputs, targets = (data.test or data.validation).batch(slice(0, 8))
    seen = explain(model, inputs, at="embedding", attention="attention")
    tokens = inputs[0] if isinstance(inputs, tuple) else inputs
    labels, vocabulary = data.extra["labels"], data.extra["vocabulary"]
    items: dict[str, list[dict[str, Any]]] = {"Attention": [], "Gradient": []}
    for row in range(len(tokens)):
        kept = seen.valid[row]
        words = [vocabulary.words[k] for k in tokens[row][kept].tolist()]
        label = f"{labels[int(targets[row])]}, predicted {labels[int(seen.predicted[row])]}"
        for name, weights in (("Attention", seen.attention), ("Gradient", seen.importance)):
            items[name].append({"words": words, "weights": weights[row][kept], "label": label})
    return [sentences(name, rows) for name, rows in items.items()]


# -- methods ----------------------------------------------------------------------------------------------------------

Recipe = Callable[[nn.Module, Setting], Trainable]


def method(name: str, summary: str, recipe: Recipe, **settings: Value) -> Method:
    """A method whose objective needs the model and the setting only."""

    def objective(model: nn.Module, setting: Setting, data: Data) -> Trainable:
        return recipe(model, setting)

    return Method(name, summary, objective, settings)


def at_scores(recipe: Callable[..., Trainable]) -> Recipe:
    """One of the recipes whose epsilon is set, at the attention layer."""
    return lambda model, setting: recipe(model, sp.cross_entropy, at="attention", epsilon=setting["epsilon"])


def ball_at(recipe: Callable[..., Trainable], site: Callable[[], Any]) -> Recipe:
    """One of the recipes that take a ball, at any site."""
    return lambda model, setting: recipe(model, sp.cross_entropy, at=site(), ball=sp.L2(setting["epsilon"]))


def iat(model: nn.Module, setting: Setting) -> Trainable:
    return sp.recipes.attention_iat(
        model, sp.cross_entropy, at="attention", epsilon=setting["epsilon"], reading=setting["reading"]
    )


def word_iat(model: nn.Module, setting: Setting) -> Trainable:
    return sp.recipes.word_iat(
        model,
        sp.cross_entropy,
        epsilon=setting["epsilon"],
        neighbours=setting["neighbours"],
        refresh=setting["refresh"],
    )


def plain(model: nn.Module, setting: Setting) -> Trainable:
    return sp.Objective(model, sp.cross_entropy)


METHODS = (
    method("plain", "cross entropy (vanilla)", plain),
    method(
        "attention_noise", "random noise on the attention scores", at_scores(sp.recipes.attention_noise), epsilon=5.0
    ),
    method("attention_at", "adversarial attention scores", at_scores(sp.recipes.attention_at), epsilon=5.0),
    method("attention_iat", "adversarial differences of attention, rows summed", iat, epsilon=5.0, reading="row_sum"),
    method("attention_iat_per_word", "the same, a ball for each word", iat, epsilon=1.0, reading="per_word"),
    method(
        "attention_vat",
        "KL to the worst attention scores",
        ball_at(sp.recipes.vat, lambda: sp.Scores("attention")),
        epsilon=5.0,
    ),
    method(
        "attention_salt",
        "SALT on the attention scores",
        ball_at(sp.recipes.salt, lambda: sp.Scores("attention")),
        epsilon=5.0,
    ),
    method(
        "word_at",
        "adversarial word vectors",
        ball_at(sp.recipes.adversarial_training, lambda: sp.Words("embedding")),
        epsilon=0.5,
    ),
    method("word_iat", "word vectors moved towards other words", word_iat, epsilon=0.5, neighbours=10, refresh=100),
)
# The paper chooses every radius on validation. For words that gave 0.5 on SST (see the docs); the radii of the papers it
# compares with, 5 and 15, belong to longer texts and leave nothing of a sentence's 20 words.

# Appendix B and section V: Adam (AMSGrad) 1e-3, L2 1e-5, batch 32; epsilon from 0 to 30 chosen on validation.
TRAINING: dict[str, Value] = {
    "optimiser": "amsgrad", "lr": 1e-3, "weight_decay": 1e-5, "batch": 32, "encoder": "lstm", "attention": "additive"
}  # fmt: skip
SST: dict[str, dict[str, Value]] = {
    "tiny": {**TRAINING, "size": 16, "features": 16, "epochs": 3, "vectors": "", "lr": 5e-3},
    "small": {**TRAINING, "size": 100, "features": 64, "epochs": 3, "vectors": "glove/glove.6B.100d.20k.txt"},
    "paper": {
        **TRAINING,
        "size": 300,
        "features": 256,
        "epochs": 30,
        "patience": 5,
        "vectors": "glove/glove.6B.300d.txt",
    },
}
BABI: dict[str, dict[str, Value]] = {
    "tiny": {**TRAINING, "size": 16, "features": 16, "epochs": 2, "questions": 500, "stories": "generated", "tested": "generated"},
    "small": {**TRAINING, "size": 50, "features": 64, "epochs": 20, "questions": 10_000, "stories": "generated", "tested": "published"},
    "paper": {**TRAINING, "size": 50, "features": 64, "epochs": 100, "patience": 10, "questions": 10_000, "stories": "published",
              "tested": "published"},
}  # fmt: skip


def task(
    name: str, summary: str, score: str, scales: dict[str, dict[str, Value]], load: Callable[[Setting], Data]
) -> Task:
    """The same models, measures and methods over other data."""
    return Task(
        name=name,
        summary=summary,
        score=score,
        better="higher",
        scales=scales,
        methods=METHODS,
        load=load,
        build=build,
        evaluate=evaluate,
        figures=draw,
        paper="Attention Meets Perturbations, table 2 and appendix B",
    )


TASKS = (
    task("sst", "sentiment of sentences, BiLSTM with attention", "f1", SST, load_sst),
    *(
        task(f"babi-{k}", f"questions about stories, {k} supporting fact(s)", "accuracy", BABI, load_babi(k))
        for k in (1, 2, 3)
    ),
)
