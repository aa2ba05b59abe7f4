"""A tiny reader of texts for the tests of streams and stages, registered for as long as a test runs."""

from types import SimpleNamespace

import torch
from torch import Tensor, nn

import sparring as sp
from sparring.lab import registry
from sparring.lab.errors import LabError
from sparring.lab.task import Data, Method, Setting, Split, Stage, Task
from sparring.lab.text import Text

WORDS = 7
TEXT = torch.randint(WORDS, (400,), generator=torch.Generator().manual_seed(0))


class Reader(nn.Module):
    """An embedding, an LSTM with dropout on its input, a guess at the next word."""

    def __init__(self, size: int = 6) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, size)
        self.dropout = nn.Dropout(0.2)
        self.lstm = nn.LSTM(size, size, batch_first=True)
        self.head = nn.Linear(size, WORDS)

    def forward(self, tokens: Tensor, state: tuple[Tensor, Tensor] | None = None) -> SimpleNamespace:
        states, state = self.lstm(self.dropout(self.embedding(tokens)), state)
        return SimpleNamespace(logits=self.head(states), state=state)


def evaluate(model: nn.Module, split: Split, setting: Setting) -> dict[str, float]:
    logits = model(split.inputs[None, :-1]).logits[0]
    return {"loss": float(nn.functional.cross_entropy(logits, split.inputs[1:]))}


def load(setting: Setting) -> Data:
    text = Text(TEXT[:300], setting["window"], setting["varied"])
    return Data(Split(TEXT[:300]), Split(TEXT[300:]), text=text)


METHODS = (
    Method("plain", "", lambda model, setting, data: sp.Objective(model, sp.cross_entropy)),
    Method(
        "fraternal", "",
        lambda model, setting, data: sp.recipes.fraternal_dropout(model, sp.cross_entropy, at=sp.Mask("dropout")),
    ),
)  # fmt: skip
VALUES = {"epochs": 2, "batch": 4, "optimiser": "sgd", "momentum": 0.0, "lr": 1.0, "window": 6, "varied": True}


def adopt(model: nn.Module, weights: dict[str, Tensor], setting: Setting) -> bool:
    if weights["embedding.weight"].shape != model.embedding.weight.shape:
        raise LabError("the stage has another vocabulary")
    model.load_state_dict(weights)
    return False


def first(setting: Setting) -> Setting | None:
    """All seeds and methods start from the plain reader of seed 0, unless they are told not to."""
    return READ.setting("plain", seed=0, overrides={"epochs": 3}) if setting["pretrained"] else None


READ = Task("read", "", "loss", "lower", {"tiny": VALUES}, METHODS, load, lambda s, d: Reader(), evaluate)
TUNE = Task(
    "tune", "", "loss", "lower", {"tiny": {**VALUES, "epochs": 1, "pretrained": True}}, METHODS, load, lambda s, d: Reader(),
    evaluate, stage=Stage(first, adopt),
)  # fmt: skip


def register() -> None:
    """Make the two tasks known in this process."""
    known = {"read": READ, "tune": TUNE}
    registry.tasks = lambda: known
