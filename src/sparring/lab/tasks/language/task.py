"""Language models of words: Penn Treebank and WikiText-2, trained with AWD-LSTM's recipe and fine-tuned once.

Table 3 of "Adversarial Dropout for Recurrent Neural Networks", validation / test perplexity: PTB AWD-LSTM 60.0 / 58.3,
fraternal dropout 58.9 / 56.8, adversarial dropout 58.7 / 56.4; WikiText-2 68.6 / 65.8, 66.8 / 64.1, 66.5 / 63.4.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor, nn

from ...models.language import AWDLSTM, VocabularyHead
from ...models.language.vocabulary import check_vocabulary, mark
from ...task import Data, Setting, Split, Stage, Task, Value
from ...text import Text
from .data import loader
from .methods import METHODS, plain

COLUMNS, WINDOW = 10, 70  # of evaluation


def build(setting: Setting, data: Data) -> nn.Module:
    """An AWD-LSTM over the words of the training text."""
    drops = {name: setting[name] for name in setting.values if name.startswith("drop_")}
    words = data.extra["vocabulary"].words
    model = AWDLSTM(len(words), setting["size"], setting["hidden"], setting["layers"], **drops)
    mark(model, words)
    return model


def evaluate(model: nn.Module, split: Split, setting: Setting) -> dict[str, float]:
    """Perplexity of a text, read on from window to window in ten columns."""
    assert isinstance(model, AWDLSTM)
    text, head = Text(split.inputs, WINDOW), VocabularyHead(model)
    columns = min(COLUMNS, len(split) // 2)
    total, count, state = 0.0, 0, None
    for window in text.windows(columns, 0, 0):
        (tokens, state), targets = text.batch(window, columns, slice(None), state)
        reading = model(tokens, state)
        state = reading.state
        total += float(head.surprise(reading.outputs, targets).double().sum())
        count += targets.numel()
    return {"perplexity": math.exp(min(total / count, 50.0)), "loss": total / count}


# FIDELITY of every number: see tests/lab/test_paper_scales.py, which names the source of each.
PAPER: dict[str, Value] = {
    "optimiser": "sgd",
    "momentum": 0.0,
    "lr": 30.0,
    "weight_decay": 1.2e-6,
    "clip": 0.25,
    "epochs": 750,
    "batch": 20,
    "average": "stalled",
    "average_patience": 60,
    "window": 70,
    "varied": True,
    "words": 0,
    "vocabulary": 0,
    "size": 400,
    "hidden": 1150,
    "layers": 3,
    "alpha": 2.0,
    "beta": 1.0,
    "drop_words": 0.1,
    "drop_input": 0.4,
    "drop_hidden": 0.3,
    "drop_output": 0.4,
    "drop_weights": 0.5,
}
WIKITEXT: dict[str, Value] = {"batch": 80, "drop_input": 0.65, "drop_hidden": 0.2}
# Two layers and word vectors of 200; windows of 35 words make twice the updates. Few epochs need little dropout
# and a rate that falls.
SMALL: dict[str, Value] = {
    **PAPER,
    "epochs": 12,
    "average_patience": 2,
    "schedule": "linear",
    "decay_from": 0.4,
    "lr": 20.0,
    "lr_end": 1.0,
    "window": 35,
    "size": 200,
    "hidden": 400,
    "layers": 2,
    "alpha": 1.0,
    "drop_words": 0.05,
    "drop_input": 0.25,
    "drop_hidden": 0.2,
    "drop_output": 0.3,
    "drop_weights": 0.3,
}
TINY: dict[str, Value] = {
    **SMALL,
    "epochs": 2,
    "words": 5_000,
    "batch": 8,
    "window": 20,
    "size": 24,
    "hidden": 32,
    "lr": 10.0,
}


def language_task(name: str, summary: str, paper: dict[str, Value]) -> Task:
    """Training from scratch on one corpus."""
    return Task(
        name=name,
        summary=summary,
        score="perplexity",
        better="lower",
        scales={"tiny": TINY, "small": SMALL, "paper": {**PAPER, **paper}},
        methods=METHODS,
        load=loader(name),
        build=build,
        evaluate=evaluate,
        paper="Adversarial Dropout for Recurrent Neural Networks (Park et al. 2019), table 3 and appendix 6",
    )


def fine_tuned(base: Task) -> Task:
    """Training once more from the weights of each method and seed: averaged from the start, without a penalty.

    It ends when the best validation score is six epochs old. AWD-LSTM's fine-tuning ends when a score is above the best of
    those that are more than five epochs old: the same, unless a better one came in between. The settings of a method go on
    to the run that it starts from.
    """
    own: dict[str, Value] = {"average": "always", "patience": 6, "first_epochs": 0}
    lengths = {"tiny": 1, "small": 6, "paper": 500}
    scales = {scale: {**values, **own, "epochs": lengths[scale]} for scale, values in base.scales.items()}
    scales["tiny"]["first_epochs"] = 1
    methods = tuple(
        replace(
            method,
            summary=method.summary + ", then fine-tuned",
            objective=plain if "weight" in method.settings else method.objective,
        )
        for method in base.methods
    )

    def first(setting: Setting) -> Setting:
        known = base.setting(setting.method, setting.scale).values
        changes = {k: v for k, v in setting.overrides.items() if k in known and k not in ("epochs", *own)}
        if setting["first_epochs"]:
            changes["epochs"] = setting["first_epochs"]
        return base.setting(setting.method, setting.scale, setting.seed, setting.data, changes)

    return Task(
        name=f"{base.name}-tuned",
        summary=base.summary + ", fine-tuned once more",
        score=base.score,
        better=base.better,
        scales=scales,
        methods=methods,
        load=base.load,
        build=build,
        evaluate=evaluate,
        stage=Stage(first, adopt),
        paper=base.paper,
    )


def adopt(model: nn.Module, weights: Mapping[str, Tensor], setting: Setting) -> bool:
    """Go on from another run's weights."""
    check_vocabulary(model, weights)
    model.load_state_dict(dict(weights))
    return True


TASKS_FROM_SCRATCH = (
    language_task("ptb", "words of the Wall Street Journal, AWD-LSTM", {}),
    language_task("wikitext-2", "words of Wikipedia articles, AWD-LSTM", WIKITEXT),
)
TASKS = (*TASKS_FROM_SCRATCH, *(fine_tuned(task) for task in TASKS_FROM_SCRATCH))
