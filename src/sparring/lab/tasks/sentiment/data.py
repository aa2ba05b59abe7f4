"""Reviews with and without labels, as texts to read on and as examples to classify.

Both stages of a task build the same vocabulary from the same settings: the words of all reviews that may be trained on,
labelled or not, that occur in at least `minimum` of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...data import DataError
from ...data.files import as_folder
from ...data.fingerprint import remembered
from ...data.imdb import elec, electronics, imdb
from ...data.language import EOS
from ...data.preparing import Preparation, spaces
from ...data.ragged import Lexicon, Ragged
from ...data.records import Texts, alike, holdout
from ...data.vectors import vectors
from ...data.vocabulary import Vocabulary
from ...errors import LabError
from ...task import Data, Setting, Split
from ...text import Text
from ..attention.made_up import made_up

Rows = Sequence[np.ndarray]
PREPARED = Preparation(number=None)
SHAPES = ("labelled", "unlabelled", "held", "tested", "minimum", "vocabulary")  # settings that decide what is read


@dataclass(frozen=True)
class Reviews:
    """Numbered reviews, the end token last in each."""

    vocabulary: Vocabulary
    share: Tensor  # frequency of each word
    train: tuple[Rows, list[int]]
    validation: tuple[Rows, list[int]]
    test: tuple[Rows, list[int]]
    more: Rows  # without labels


def read(name: str, folder: Path | None) -> tuple[Texts, Texts, Callable[[], list[str]], Preparation]:
    """Labelled, test and (when asked for) unlabelled reviews of a corpus, and how to cut them into words."""
    if name == "imdb":
        return imdb("train", folder), imdb("test", folder), lambda: imdb("train", folder, True).first, PREPARED
    if as_folder(folder).find("elec/elec-25k-train.txt.tok"):
        known, unseen = once(elec("train", folder)), elec("test", folder)

        def more() -> list[str]:
            there = {*known.first, *unseen.first}
            return [text for text in dict.fromkeys(elec("train", folder, True).first) if text not in there]

        return known, unseen, more, Preparation(tokenise=spaces, number=None)
    found = once(electronics(folder))
    rest, test = holdout(len(found), 0.25)
    return found.take(rest), found.take(test), no_more, PREPARED


def once(texts: Texts) -> Texts:
    """Every review once: some stand there twice, and the paper takes copies out of Elec (section 5.2).

    >>> once(Texts(["good", "bad", "good"], None, np.array([1, 0, 1]))).first
    ['good', 'bad']
    """
    return texts.take(np.array([rows[0] for rows in alike(texts.first)]))


def no_more() -> list[str]:
    """The stand-in for Elec has labelled reviews only."""
    raise DataError(
        "the stand-in for Elec has no reviews beyond its labelled ones; put elec-25k-train and elec-test (.txt.tok and .cat), "
        "elec-25k-unlab00.txt.tok and elec-25k-unlab01.txt.tok of Johnson and Zhang under elec/, or --set unlabelled=0"
    )


@remembered(2)
def reviews(name: str, folder: Path | None, tiny: bool, shapes: tuple[Any, ...]) -> Reviews:
    """All that both stages need, read once per process."""
    labelled, unlabelled, held, tested, minimum, largest = shapes
    if held < 1:
        raise LabError(f"held={held} does not fit; at least one review must be held out to validate")
    if 0 < largest < 4:
        raise LabError(
            f"vocabulary={largest} does not fit; 0 takes every word, 4 would be padding, the unknown, the end and one word"
        )
    lexicon = Lexicon()

    def numbered(texts: Sequence[Sequence[str]]) -> list[np.ndarray]:
        return [lexicon([*words, EOS]) for words in texts]

    if tiny:
        parts = [made_up(count, seed) for seed, count in enumerate((labelled, held, tested, unlabelled))]
        (train, check, test), more = [(numbered(t), y) for t, y in parts[:3]], numbered(parts[3][0])
    else:
        known, unseen, free, prepare = read(name, folder)
        fit, valid = holdout(len(known), min(held, len(known) // 2) / len(known))
        if labelled:
            fit = fit[np.random.default_rng(0).permutation(len(fit))[:labelled]]
        train, check, test = (
            (numbered(prepare.all(part.first)), labels_of(part))
            for part in (known.take(fit), known.take(valid), some(unseen, tested))
        )
        rest = np.setdiff1d(np.arange(len(known)), np.concatenate([fit, valid]))
        if unlabelled < len(rest):  # the files come class by class: the first ones would all be of one
            rest = np.sort(np.random.default_rng(1).permutation(rest)[:unlabelled])
        texts = [known.first[i] for i in rest]  # their labels are not used
        if unlabelled > len(texts):
            texts += free()
        more = numbered(prepare.all(texts[:unlabelled]))
    kept = [*train[0], *more]
    vocabulary, numbers = lexicon.vocabulary(kept, minimum, extra=(EOS,))
    if largest and len(vocabulary) > largest:
        vocabulary = Vocabulary(vocabulary.words[:largest])
        numbers = np.where(numbers < largest, numbers, vocabulary.unk)
    count = np.bincount(numbers[np.concatenate(kept)], minlength=len(vocabulary)).astype(np.float64)
    final = [([numbers[row] for row in rows], labels) for rows, labels in (train, check, test)]
    share = torch.tensor(count / count.sum(), dtype=torch.float32)
    return Reviews(vocabulary, share, final[0], final[1], final[2], [numbers[row] for row in more])


def labels_of(part: Texts) -> list[int]:
    """The classes of labelled texts."""
    assert part.labels is not None
    return [int(label) for label in part.labels]


def some(part: Texts, count: int) -> Texts:
    """At most `count` of the texts, drawn at random; 0 takes all."""
    return part.take(holdout(len(part), count / len(part))[1]) if 0 < count < len(part) else part


def found(setting: Setting, name: str) -> Reviews:
    """The reviews that a setting asks for."""
    return reviews(name, setting.data, setting.scale == "tiny", tuple(setting[key] for key in SHAPES))


def extra(setting: Setting, read: Reviews) -> dict[str, Any]:
    """What models are built from."""
    entries: dict[str, Any] = {"vocabulary": read.vocabulary, "share": read.share}
    if setting["vectors"]:
        words = set(read.vocabulary.words)
        entries["vectors"], _ = vectors(setting["vectors"], setting.data, words).embedding(read.vocabulary)
    return entries


def classified(setting: Setting, name: str) -> Data:
    """The second stage: reviews cut to their last `longest` words, and all of them again without labels."""
    read = found(setting, name)

    def split(rows: Rows, labels: Sequence[int] | None = None) -> Split:
        texts = Ragged([row[-(setting["longest"] or len(row)) :] for row in rows])

        def collate(index: Tensor, targets: Any) -> tuple[Tensor, Any]:
            return texts(index), targets

        return Split(torch.arange(len(rows)), None if labels is None else torch.tensor(labels), collate)

    return Data(
        train=split(*read.train),
        validation=split(*read.validation),
        test=split(*read.test),
        extra=extra(setting, read),
        unlabelled=split([*read.train[0], *read.more]),
    )


def read_on(setting: Setting, name: str) -> Data:
    """The first stage: the same reviews one after the other, shuffled, since the files come class by class."""
    read = found(setting, name)

    def text(rows: Rows) -> Tensor:
        order = np.random.default_rng(0).permutation(len(rows))
        return torch.from_numpy(np.concatenate([rows[i] for i in order]).astype(np.int64))

    train = text([*read.train[0], *read.more])
    return Data(
        train=Split(train),
        validation=Split(text(read.validation[0])),
        test=Split(text(read.test[0])),
        extra=extra(setting, read),
        text=Text(train, setting["window"]),
    )
