"""Sentences with one of two labels: SST, IMDB, 20 Newsgroups and AG News as the paper prepares them (Table 1, appendix A).

Numbers that the paper does not print are those of its released code (`amep/commands/make_dataset/bc`).
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...data.agnews import ag_news
from ...data.imdb import imdb
from ...data.newsgroups import newsgroups
from ...data.preparing import Preparation, spaces
from ...data.ragged import Lexicon, Ragged
from ...data.records import Texts, holdout
from ...data.sst import sst
from ...data.vectors import vectors
from ...data.vocabulary import Vocabulary
from ...errors import LabError
from ...task import Data, Setting, Split
from .made_up import made_up

Rows = Sequence[np.ndarray]
SHARES = (1, 4, 2)  # of the made-up examples, for training, validation and test


@dataclass(frozen=True)
class Examined(Split):
    """A split whose words are also left out one at a time when it is evaluated: too slow for every epoch's validation.

    Args:
        parts: Where the split consists of several: the examples of each.
    """

    parts: tuple[tuple[str, slice], ...] = ()


def single(rows: Rows, labels: Sequence[int], kind: type[Split] = Split) -> Split:
    """Sentences and their labels; a batch is padded to its own longest sentence."""
    sentences = Ragged(rows)

    def collate(index: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return sentences(index), targets

    return kind(torch.arange(len(rows)), torch.tensor(labels), collate)


def known_vectors(setting: Setting, vocabulary: Vocabulary) -> dict[str, Any]:
    """The word vectors that the setting names, if it names any, for every word of the vocabulary."""
    if not setting["vectors"]:
        return {}
    matrix, coverage = vectors(setting["vectors"], setting.data, words=set(vocabulary.words)).embedding(vocabulary)
    return {"vectors": matrix, "coverage": coverage}


def shortened(setting: Setting, *parts: Texts) -> list[Texts]:
    """Each part cut to at most `examples` (0: all), drawn at random."""
    cut = []
    for part in parts:
        wanted = setting["examples"]
        keep = holdout(len(part), wanted / len(part))[1] if 0 < wanted < len(part) else np.arange(len(part))
        cut.append(part.take(keep))
    return cut


def read(
    parts: Sequence[Texts], setting: Setting, prepare: Preparation
) -> tuple[Lexicon, Sequence[Rows], Sequence[list[int]]]:
    """Each part's texts as numbers, without those shorter than `shortest` or longer than `longest` words."""
    lexicon = Lexicon()
    rows: list[Rows] = []
    labels: list[list[int]] = []
    for part in parts:
        assert part.labels is not None
        numbers = [lexicon(prepare(text)) for text in part.first]
        kept = [i for i, r in enumerate(numbers) if setting["shortest"] <= len(r) <= (setting["longest"] or len(r))]
        if not kept:
            raise LabError(
                f"no text of {setting.task} has {setting['shortest']} to {setting['longest']} words; "
                "widen --set shortest=... longest=..."
            )
        rows.append([numbers[i] for i in kept])
        labels.append(part.labels[kept].tolist())
    return lexicon, rows, labels


def assembled(
    lexicon: Lexicon, rows: Sequence[Rows], labels: Sequence[Sequence[int]], names: tuple[str, ...], setting: Setting
) -> Data:
    """The splits of a task of single sentences; the vocabulary is the training part's."""
    vocabulary, numbers = lexicon.vocabulary(rows[0], setting["minimum"])
    fit, check, test = (
        single([numbers[row] for row in part], right, kind)
        for part, right, kind in zip(rows, labels, (Split, Split, Examined), strict=True)
    )
    extra = {"vocabulary": vocabulary, "labels": names, "classes": len(names), **known_vectors(setting, vocabulary)}
    return Data(fit, check, test, extra)


def tiny(setting: Setting, names: tuple[str, ...]) -> Data:
    """Made-up sentences: `examples` to train, a quarter as many to validate, half as many to test."""
    lexicon, rows, labels = Lexicon(), [], []
    for seed, share in enumerate(SHARES):
        texts, right = made_up(setting["examples"] // share, seed)
        rows.append([lexicon(text) for text in texts])
        labels.append(right)
    return assembled(lexicon, rows, labels, names, setting)


def divided(part: Texts, share: float, seed: int = 0) -> tuple[Texts, Texts]:
    """A training and a validation part."""
    first, second = holdout(len(part), share, seed)
    return part.take(first), part.take(second)


def load_sst(setting: Setting) -> Data:
    """The treebank's sentences without the neutral ones: 6,920 / 872 / 1,821."""
    names = ("Neg.", "Pos.")
    if setting.scale == "tiny":
        return tiny(setting, names)
    parts = shortened(setting, *(sst(name, setting.data, classes=2) for name in ("train", "dev", "test")))
    prepare = Preparation(tokenise=spaces) if setting["marks"] else Preparation(tokenise=without_marks, number=None)
    return assembled(*read(parts, setting, prepare), names, setting)


def without_marks(text: str) -> list[str]:
    """The treebank's words as the released code leaves them: no punctuation, no brackets, numbers as they are.

    >>> without_marks("a -lrb- so-so -rrb- film , is n't it")
    ['a', 'so', 'so', 'film', 'is', 'n', 't', 'it']
    """
    return re.sub(r"\W", " ", text.replace("-lrb-", "").replace("-rrb-", " ")).split()


def load_imdb(setting: Setting) -> Data:
    """Reviews of 6 to 399 words: a fifth of the training part to validate, a fifth of the test part to test."""
    names = ("Neg.", "Pos.")
    if setting.scale == "tiny":
        return tiny(setting, names)
    train, test = shortened(setting, imdb("train", setting.data), imdb("test", setting.data))
    lexicon, rows, labels = read((train, test), setting, Preparation())
    cuts = holdout(len(rows[0]), 0.2)
    tested = holdout(len(rows[1]), 0.2)[1]
    split = [*((0, cut) for cut in cuts), (1, tested)]
    chosen = [[rows[k][i] for i in cut] for k, cut in split]
    return assembled(lexicon, chosen, [[labels[k][i] for i in cut] for k, cut in split], names, setting)


def load_newsgroups(setting: Setting) -> Data:
    """Baseball against hockey, headers, footers and quotes removed, 6 to 500 words: 64 % / 16 % / 20 % of both parts."""
    names = ("baseball", "hockey")
    if setting.scale == "tiny":
        return tiny(setting, names)
    groups = tuple(f"rec.sport.{name}" for name in names)
    found = [newsgroups(part, setting.data, groups, ("headers", "footers", "quotes")) for part in ("train", "test")]
    labels = [part.labels for part in found if part.labels is not None]
    every = Texts([t for part in found for t in part.first], None, np.concatenate(labels), names)
    (every,) = shortened(setting, every)
    rest, test = divided(every, 0.2)
    return assembled(*read((*divided(rest, 0.2), test), setting, Preparation()), names, setting)


def load_agnews(setting: Setting) -> Data:
    """World against business news, descriptions only: 51,000 / 9,000 / 3,800."""
    names = ("World", "Business")
    if setting.scale == "tiny":
        return tiny(setting, names)
    train = ag_news(setting["source"], setting.data, title=False).keep(*names)
    test = ag_news("test", setting.data, title=False).keep(*names)
    train, test = shortened(setting, train, test)
    return assembled(*read((*divided(train, 0.15), test), setting, Preparation()), names, setting)


LOAD: dict[str, Callable[[Setting], Data]] = {
    "sst": load_sst,
    "imdb-attention": load_imdb,
    "20news": load_newsgroups,
    "ag-news": load_agnews,
}
