"""Translation: Multi30k and IWSLT, with an encoder-decoder transformer perturbed at the words of both sides.

Machine translation of "SALT" (section 4.2, tables 1 to 3 and 8, appendix B.1): byte-pair pieces learned from the training
text, batches by tokens, label smoothing, the inverse-square-root schedule, beam search, BLEU. Source and target
embeddings are two places, each with a ball of its own. The paper's targets on IWSLT'14 De-En: Transformer 34.7, Adv 34.8,
FreeAT 35.2, FreeLB 35.3, SMART 35.5, SALT 36.8; on IWSLT'15 En-Vi 30.3, 31.0, 31.0, 31.6, 31.5, 32.8; on WMT'16 En-De
Transformer 28.4, FreeAT and FreeLB 29.0, SMART 29.1, SALT 29.6.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor, nn

import sparring as sp

from ...data.pieces import Pieces
from ...errors import LabError
from ...models.transformer import Translator
from ...task import Data, Setting, Stage, Task, Value
from ..competitors import competitors
from ..encoders import encoder_contents
from . import pretrained
from .pairs import IGNORED, encoded, masks, read
from .scores import evaluate, figures


def load(name: str, setting: Setting) -> Data:
    """Pairs as pieces that the training text taught; validation is searched greedily, the test with the beam."""
    if setting["beam"] < 1:
        raise LabError(f"beam={setting['beam']} does not fit; it must be at least 1")
    train, validation, test = read(name, setting)
    if setting["examples"]:
        train = train.take(np.arange(min(setting["examples"], len(train))))
    if setting["encoder"] != "scratch":
        encode = partial(pretrained.encoded, encoder=setting["encoder"])
        return Data(encode(train, length=setting["length"]), encode(validation), encode(test, beam=setting["beam"]), {})
    pieces = Pieces.learn([*train.first, *(train.second or [])], setting["pieces"])
    return Data(
        encoded(train, pieces, setting["length"]),
        encoded(validation, pieces),
        encoded(test, pieces, beam=setting["beam"]),
        {"pieces": len(pieces)},
    )


def build(setting: Setting, data: Data) -> nn.Module:
    """Our transformer, or a pretrained one."""
    if setting["encoder"] != "scratch":
        return pretrained.build(setting["encoder"], setting["dropout"])
    return Translator(
        data.extra["pieces"],
        setting["width"],
        setting["heads"],
        setting["layers"],
        setting["inner"],
        setting["dropout"],
        setting["pre_norm"],
        setting["share"],
    )


# What a run shares with the plain training that comes first: the data, the network and the loss, not the optimiser.
COMMON = (
    "encoder",
    "train",
    "examples",
    "length",
    "pieces",
    "width",
    "heads",
    "layers",
    "inner",
    "dropout",
    "pre_norm",
    "share",
    "label_smoothing",
    "tokens",
)


def first(name: str, setting: Setting) -> Setting | None:
    """With `first_epochs`, so many epochs of plain training before, once for all methods and seeds."""
    if not setting["first_epochs"]:
        return None
    changes = {key: value for key, value in setting.overrides.items() if key in COMMON}
    changes["epochs"] = setting["first_epochs"]
    return NAMED[name].setting("plain", setting.scale, 0, setting.data, changes)


def adopt(model: nn.Module, weights: Mapping[str, Tensor], setting: Setting) -> bool:
    """Go on from the weights of the plain training, which do not compete with the epochs: each method has a score of its own."""
    model.load_state_dict(dict(weights))
    return False


def kit(model: nn.Module, setting: Setting, data: Data) -> tuple[Any, str, dict[str, Any]]:
    """Smoothed cross-entropy, the mean over all pieces; the words of both sides are the places to perturb."""
    loss = partial(sp.cross_entropy, ignore_index=IGNORED, label_smoothing=setting["label_smoothing"])
    if setting["encoder"] != "scratch":
        return loss, pretrained.words_of(model), {"reduction": "tokens"}
    return loss, "*_words", {"valid": masks, "reduction": "tokens"}


PAPER: dict[str, Value] = {
    "encoder": "scratch",  # or a folder or name of an encoder-decoder that transformers can load
    "train": "train",
    "examples": 0,
    "length": 175,
    "pieces": 10_000,
    "width": 512,
    "heads": 8,
    "layers": 6,
    "inner": 2048,
    "dropout": 0.3,
    "pre_norm": False,
    "share": True,
    "label_smoothing": 0.1,
    "beam": 10,
    "length_penalty": 1.0,
    "first_epochs": 0,  # epochs of plain training before, once for all methods and seeds
    "epochs": 100,
    "tokens": 8_000,
    "accumulate": 8,  # 64k tokens an update
    "optimiser": "adam",
    "beta2": 0.98,
    "lr": 1e-3,
    "schedule": "inverse_sqrt",
    "warmup": 0.1,
    "average": "epochs",
}
SMALL: dict[str, Value] = {
    **PAPER,
    "length": 80,
    "pieces": 4_000,
    "width": 128,
    "heads": 4,
    "layers": 2,
    "inner": 512,
    "dropout": 0.1,
    "pre_norm": True,
    "beam": 5,
    "epochs": 15,
    "tokens": 2_048,
    "accumulate": 1,
    "lr": 2e-3,
    "warmup": 0.05,
}
TINY: dict[str, Value] = {
    **SMALL,
    "examples": 300,
    "length": 60,
    "pieces": 120,
    "width": 32,
    "layers": 1,
    "inner": 64,
    "dropout": 0.1,
    "beam": 2,
    "epochs": 8,
    "tokens": 600,
    "lr": 1e-2,
}


def translation_task(
    name: str,
    summary: str,
    follower: dict[str, Value],
    paper: dict[str, Value],
    table: str,
    train: str = "train",
) -> Task:
    """One corpus, with the follower's settings of table 8."""
    own: dict[str, Value] = {"train": train}
    small: dict[str, Value] = {"radius": follower["radius"], "steps": 1, "start": 1e-4}
    return Task(
        name=name,
        summary=summary,
        score="bleu",
        better="higher",
        scales={"tiny": {**TINY, **own}, "small": {**SMALL, **own}, "paper": {**PAPER, **paper, **own}},
        methods=competitors(kit, small, {"update": "raw", "steps": 1, **follower}, seen_through=1e-3),
        load=partial(load, name),
        build=build,
        evaluate=evaluate,
        figures=figures,
        stage=Stage(partial(first, name), adopt),
        derive=encoder_contents,
        paper=f"Adversarial Regularization as Stackelberg Game: SALT (Zuo et al. 2021), section 4.2, {table}, appendix B.1",
    )


GERMAN: dict[str, Value] = {"radius": 0.3, "step_size": 1e-4, "start": 1e-4}
VIETNAMESE: dict[str, Value] = {"radius": 0.1, "step_size": 1e-5, "start": 1e-4}
# IWSLT'14 De-En: half the inner width and half the heads of Transformer-base.
SMALLER: dict[str, Value] = {"inner": 1024, "heads": 4, "beam": 9, "length_penalty": 1.5}
# Transformer-big, 450k tokens an update; the published text is cleaned already, and nothing of it is left out.
BIG: dict[str, Value] = {
    "length": 0,
    "width": 1024,
    "inner": 4096,
    "heads": 16,
    "pieces": 32_000,
    "beam": 4,
    "length_penalty": 0.6,
    "tokens": 7_500,
    "accumulate": 60,
    "epochs": 20,
}
TASKS = (
    translation_task(
        "multi30k", "German captions into English: Multi30k", GERMAN, SMALLER, "table 8 (the De-En settings)"
    ),
    translation_task("iwslt14-de-en", "German talks into English: IWSLT'14", GERMAN, SMALLER, "tables 1, 2 and 8"),
    translation_task(
        "wmt16-en-de", "English news into German: WMT'16", GERMAN, BIG, "tables 1, 3 and 8", "train.tok.clean.bpe.32000"
    ),
    translation_task("iwslt15-en-vi", "English talks into Vietnamese: IWSLT'15", VIETNAMESE, {}, "tables 1, 2 and 8"),
)
NAMED = {task.name: task for task in TASKS}
