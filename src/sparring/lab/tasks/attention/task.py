"""Attention trained against perturbations: the ten data sets of "Attention Meets Perturbations" with the BiRNN models.

How well the model predicts, and how far its attention agrees with gradient importance. The figures of the paper's Table 2
stand beside ours in `docs/papers/attention.md`.
"""

from torch import nn

from ...models.birnn import PairSequence, SingleSequence
from ...task import Data, Setting, Task, Value
from . import pairs, texts
from .measures import draw, evaluate
from .methods import METHODS


def build(setting: Setting, data: Data) -> nn.Module:
    """The single-sequence model for sentences, the pair model for questions and inference."""
    model = PairSequence if data.extra.get("pair") else SingleSequence
    return model(
        len(data.extra["vocabulary"]),
        setting["size"],
        setting["features"],
        data.extra["classes"],
        setting["encoder"],
        setting["attention"],
        data.extra.get("vectors"),
    )


Values = dict[str, Value]

# Appendix B: Adam 1e-3, L2 1e-5, one LSTM layer of 256 (bAbI 64), word vectors of 300 (bAbI 50, from scratch). Released
# code (config/base_bc.jsonnet, base_qa.jsonnet): AMSGrad, batches of 32, 8 epochs for sentences, 10 for pairs.
COMMON: Values = {
    "optimiser": "amsgrad",
    "lr": 1e-3,
    "weight_decay": 1e-5,
    "batch": 32,
    "encoder": "lstm",
    "attention": "additive",
    "minimum": 1,
    "vectors": "",
    "scored": 200,
    "removed": 100,
}
TINY: Values = {**COMMON, "size": 16, "features": 16, "epochs": 3, "lr": 5e-3, "removed": 20}
SMALL: Values = {**COMMON, "size": 100, "features": 64, "epochs": 3, "vectors": "glove/glove.6B.100d.20k.txt"}
PAPER: Values = {
    **COMMON,
    "size": 300,
    "features": 256,
    "epochs": 8,
    "vectors": "glove/glove.6B.300d.txt",
    "removed": 500,
}
PAIRS: Values = {**PAPER, "epochs": 10}

# What differs from data set to data set. Source of the paper's numbers: amep/commands/make_dataset of the released code:
# `minimum` is its min_df, `shortest` and `longest` its filter_by_length. Where `small` reads only a part of a
# training set `source` names that part. `examples`: at most so many texts of each part; 0: all.
OWN: dict[str, dict[str, Values]] = {
    # The released code strips SST of its punctuation.
    "sst": {"": {"shortest": 1, "longest": 0, "examples": 0, "marks": True}, "paper": {"marks": False}},
    "imdb-attention": {
        "": {"shortest": 6, "longest": 399, "minimum": 10, "examples": 0},
        "tiny": {"minimum": 1, "shortest": 1},
        "small": {"examples": 4000},
    },
    "20news": {
        "": {"shortest": 6, "longest": 500, "minimum": 2, "examples": 0},
        "tiny": {"minimum": 1, "shortest": 1},
        "small": {"epochs": 8},
    },
    "ag-news": {
        "": {"shortest": 1, "longest": 0, "minimum": 5, "examples": 0, "source": "train"},
        "tiny": {"minimum": 1},
        "small": {"minimum": 2, "source": "sample"},
    },
    "cnn-qa": {
        "": {"minimum": 8, "examples": 0, "scored": 32},
        "tiny": {"minimum": 1, "epochs": 2},
        "small": {"minimum": 3, "examples": 5000},
    },
    "snli-attention": {
        "": {"minimum": 3, "examples": 0, "source": "native"},
        "tiny": {"minimum": 1, "source": "native"},
        "small": {"source": "plain"},
    },
    "multinli-attention": {"": {"minimum": 3, "examples": 0}, "tiny": {"minimum": 1}, "small": {"examples": 20_000}},
}
# `longest`: stories of at most so many words; 0: all. `correlated`: validation questions whose correlation is followed.
STORIES: Values = {"longest": 0, "correlated": 200}
BABI: dict[str, Values] = {
    "tiny": {
        **TINY,
        **STORIES,
        "lr": 1e-3,
        "epochs": 2,
        "questions": 500,
        "stories": "generated",
        "tested": "generated",
    },
    "small": {
        **COMMON,
        **STORIES,
        "size": 50,
        "features": 64,
        "epochs": 20,
        "questions": 10_000,
        "tested": "published",
    },
    # 100 epochs: Jain and Wallace's code, which the released one does not repeat for bAbI.
    "paper": {
        **COMMON,
        **STORIES,
        "size": 50,
        "features": 64,
        "epochs": 100,
        "patience": 10,
        "questions": 10_000,
        "stories": "published",
        "tested": "published",
        "removed": 500,
    },
}


def scales(name: str) -> dict[str, Values]:
    """The three scales of a data set."""
    if name.startswith("babi"):
        # Task 3 does not need its 10,000 published training questions at `small`: there we tell our own.
        stories = "generated" if name == "babi-3" else "published"
        return {**BABI, "small": {**BABI["small"], "stories": stories}}
    own = OWN[name]
    paper = PAIRS if name in pairs.LOAD else PAPER
    return {
        scale: {**base, **own[""], **own.get(scale, {}), **({"examples": 400} if scale == "tiny" else {})}
        for scale, base in (("tiny", TINY), ("small", SMALL), ("paper", paper))
    }


SUMMARIES = {
    "sst": "sentiment of sentences, BiLSTM with attention",
    "imdb-attention": "sentiment of film reviews, BiLSTM with attention",
    "20news": "baseball or hockey, BiLSTM with attention",
    "ag-news": "world or business news, BiLSTM with attention",
    "cnn-qa": "which entity of a news article fills the gap",
    "snli-attention": "does a sentence follow from another, BiLSTM with attention",
    "multinli-attention": "the same over ten genres",
    **{f"babi-{k}": f"questions about stories, {k} supporting fact(s)" for k in (1, 2, 3)},
}
LOAD = {**texts.LOAD, **pairs.LOAD}

TASKS = tuple(
    Task(
        name=name,
        summary=summary,
        score="f1" if name in texts.LOAD else "accuracy",
        better="higher",
        scales=scales(name),
        methods=METHODS,
        load=LOAD[name],
        build=build,
        evaluate=evaluate,
        figures=draw,
        paper="Attention Meets Perturbations (Kitada and Iyatomi 2021), tables 1 and 2, appendices A and B; released code",
    )
    for name, summary in SUMMARIES.items()
)
