"""Sentence pairs for translation: where each corpus lies, generated ones, and how they become batches."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ...data.batches import pad
from ...data.parallel import parallel
from ...data.pieces import Pieces
from ...data.records import Texts
from ...errors import LabError
from ...models.transformer.model import END, PAD, START
from ...task import Setting, Split, take
from ..glue.sentences import statement

IGNORED = -100


@dataclass(frozen=True)
class Corpus:
    """The splits of a corpus by the names of its files.

    Args:
        name: what `parallel` calls it.
        validation: which split decides.
        test: which split is reported.
        prefix: before the name of every split.
        tokenised: the text is cut into words already, so that BLEU must not cut it again.
    """

    name: str
    validation: str
    test: str
    prefix: str = ""
    tokenised: bool = False


CORPORA = {
    "multi30k": Corpus("multi30k", "val", "test_2016_flickr"),
    "iwslt14-de-en": Corpus("iwslt14-de-en", "valid", "test", prefix="tmp/", tokenised=True),
    "iwslt15-en-vi": Corpus("iwslt15-en-vi", "tst2012", "tst2013", tokenised=True),
    "wmt16-en-de": Corpus("wmt16-en-de", "newstest2013.tok.bpe.32000", "newstest2014.tok.bpe.32000", tokenised=True),
}


@dataclass(frozen=True)
class Pairs(Split):
    """Sentence pairs with what BLEU needs: the reference texts, the beam to search with, and how pieces become text."""

    references: Sequence[str] = field(default_factory=tuple)
    beam: int = 1
    pieces: Any = None

    def first(self, count: int) -> "Pairs":
        """The first pairs only."""
        part = slice(count)
        return replace(
            self,
            inputs=take(self.inputs, part),
            targets=self.targets[part],
            lengths=None if self.lengths is None else self.lengths[part],
            references=self.references[part],
        )


def read(name: str, setting: Setting) -> tuple[Texts, Texts, Texts]:
    """Training, validation and test pairs; without a file of its own to train on, `train=` may name the validation split."""
    if setting.scale == "tiny":
        return tuple(generated(count, seed) for seed, count in enumerate((setting["examples"], 60, 60)))  # type: ignore[return-value]
    corpus = CORPORA[name]
    if setting["train"] == corpus.test:
        raise LabError(f"train={corpus.test} does not fit; it is what {name} is tested on")
    train, validation, test = (
        parallel(corpus.name, corpus.prefix + split, setting.data)
        for split in (setting["train"], corpus.validation, corpus.test)
    )
    if setting["train"] == corpus.validation:  # a tenth of it validates
        cut = len(train) - max(1, len(train) // 10)
        first, second = train.second or [], train.first
        train, validation = (Texts(second[part], first[part], None) for part in (slice(cut), slice(cut, None)))
    return train, validation, test


def generated(count: int, seed: int) -> Texts:
    """A language in which every word is written backwards and the verb comes last.

    >>> pairs = generated(1, seed=0)
    >>> len(pairs.first[0].split()) == len(pairs.second[0].split())
    True
    """
    draw = random.Random(seed)
    first, second = [], []
    for _ in range(count):
        words = statement(draw)[: draw.choice((5, 8, 9))]
        first.append(" ".join(words))
        second.append(" ".join(word[::-1] for word in [*words[:2], *words[3:], words[2]]))
    return Texts(first, second, None)


def encoded(texts: Texts, pieces: Pieces, length: int = 0, beam: int = 1) -> Pairs:
    """Pairs as numbers, (N, S) and (N, T); those longer than `length` pieces are left out (0: none are).

    The end of a sentence is a piece of the source and of the targets; what the decoder reads begins with the start.
    """
    assert texts.second is not None
    both = list(zip(pieces.encode_all(texts.first), pieces.encode_all(texts.second), strict=True))
    kept = [place for place, (a, b) in enumerate(both) if not length or max(len(a), len(b)) < length]
    if not kept:
        shortest = min(max(len(a), len(b)) + 1 for a, b in both)
        raise LabError(f"length={length} leaves no sentence pair; the shortest needs {shortest}")
    source, _ = pad([[*both[place][0], END] for place in kept], PAD)
    target, _ = pad([[START, *both[place][1]] for place in kept], PAD)
    wanted, valid = pad([[*both[place][1], END] for place in kept], PAD)
    lengths = torch.tensor([max(len(both[place][0]), len(both[place][1])) + 1 for place in kept])
    references = [texts.second[place] for place in kept]
    inputs, targets = {"source": source, "target": target}, wanted.masked_fill(~valid, IGNORED)
    return Pairs(inputs, targets, trimmed, lengths, references, beam, pieces)


def trimmed(inputs: dict[str, Tensor], targets: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """A batch without the columns that are padding in every row, each side for itself."""
    sides = {name: int((numbers != PAD).sum(-1).max()) for name, numbers in inputs.items()}
    return {name: numbers[:, : sides[name]] for name, numbers in inputs.items()}, targets[:, : sides["target"]]


def masks(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Which words are there, on each side."""
    source, target = inputs["source"] != PAD, inputs["target"] != PAD
    return {"source_words": source, "target_words": target, "outputs": target}
