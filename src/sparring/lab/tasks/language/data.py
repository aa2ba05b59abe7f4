"""Texts for language models: generated sentences, Penn Treebank, WikiText-2."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ...data.fingerprint import remembered
from ...data.language import EOS, ptb, wikitext2
from ...data.vocabulary import Vocabulary
from ...task import Data, Setting, Split
from ...text import Text

Reader = Callable[[str, Path | None], list[str]]
READERS: dict[str, Reader] = {"ptb": ptb, "wikitext-2": wikitext2}

NOUNS = ["cat", "dog", "bird", "horse", "child", "teacher", "doctor", "farmer", "sailor", "river"]
VERBS = ["see", "chase", "follow", "like", "hear", "find", "know", "help", "meet", "call"]
ADJECTIVES = ["old", "young", "small", "quiet", "brave", "tired", "happy", "strange"]


def sentences(count: int, seed: int) -> list[str]:
    """Words of generated sentences in which subject and verb agree, however much stands between them.

    >>> " ".join(sentences(1, 2))
    'the young strange cats that the brave sailors help find the bird <eos>'
    """
    random = np.random.default_rng(seed)

    def noun(plural: bool) -> list[str]:
        adjectives = [random.choice(ADJECTIVES) for _ in range(random.integers(3))]
        return ["the", *map(str, adjectives), str(random.choice(NOUNS)) + "s" * plural]

    def verb(plural: bool) -> str:
        return str(random.choice(VERBS)) + "s" * (not plural)

    words: list[str] = []
    for _ in range(count):
        plural, inner, third = (bool(draw < 0.5) for draw in random.random(3))
        aside = ["that", *noun(inner), verb(inner)] if random.random() < 0.4 else []
        words += [*noun(plural), *aside, verb(plural), *noun(third), EOS]
    return words


@remembered(3)
def corpus(name: str, folder: Path | None, largest: int = 0) -> tuple[Vocabulary, dict[str, Tensor]]:
    """The words of a corpus, at most the `largest` most frequent ones, and its three texts as numbers, read once per process."""
    if name == "generated":
        texts = {"train": sentences(1200, 0), "valid": sentences(150, 1), "test": sentences(150, 2)}
    else:
        texts = {split: READERS[name](split, folder) for split in ("train", "valid", "test")}
    vocabulary = Vocabulary.build([texts["train"]], size=largest or None)
    return vocabulary, {split: torch.tensor(vocabulary.encode(words)) for split, words in texts.items()}


def loader(name: str) -> Callable[[Setting], Data]:
    """The `load` of a task.

    `words` above 0 takes the first so many of the training text only; `vocabulary` above 0 the so many most frequent words of the
    whole training text, and `<unk>` for all others, so that perplexities of two vocabularies do not compare.
    """

    def load(setting: Setting) -> Data:
        source = "generated" if setting.scale == "tiny" else name
        vocabulary, texts = corpus(source, setting.data, setting["vocabulary"])
        train = texts["train"][: setting["words"] or None]
        return Data(
            train=Split(train),
            validation=Split(texts["valid"]),
            test=Split(texts["test"]),
            extra={"vocabulary": vocabulary},
            text=Text(train, setting["window"], setting["varied"]),
        )

    return load
