"""Sentences for the fine-tuning tasks: where each comes from, generated ones, and how words become numbers."""

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ...data import glue as native
from ...data import nli
from ...data.batches import pad
from ...data.files import as_folder
from ...data.preparing import words
from ...data.records import Texts
from ...data.vocabulary import Vocabulary

SEPARATOR = "<sep>"
BESIDE = " test"  # how the name of a part ends that is scored and does not decide
NOUNS = ["cat", "dog", "bird", "horse", "girl", "boy", "farmer", "doctor", "king", "robot"]
VERBS = ["sees", "likes", "follows", "helps", "finds", "paints", "hears", "carries"]
PLACES = ["home", "town", "school", "river", "garden", "market", "forest", "island"]
EXTRAS = ["today", "yesterday", "slowly", "again", "alone", "together"]
MOODS = (["dull", "poor", "clumsy", "tedious"], ["fine", "warm", "clever", "moving"])


def corpus(task: str, data: Path | None) -> tuple[Texts, dict[str, Texts]]:
    """What a task trains on, and the texts it is tested on by name.

    GLUE hides the labels of its test sets, so the development sets are the test here. ANLI's are public and papers report both:
    the development sets decide, the test sets are scored beside them where their files are.
    """
    if task == "mnli":
        return native.glue(task, "train", data), {
            part: native.glue(task, f"dev_{part}", data) for part in ("matched", "mismatched")
        }
    if task == "multinli":
        return nli.multinli("train", data), {part: nli.multinli(part, data) for part in ("matched", "mismatched")}
    if task == "anli":
        there = as_folder(data).find("nli/anli_v1.0/R1/test.jsonl") is not None
        return joined([nli.anli(number, "train", data) for number in (1, 2, 3)]), {
            f"R{number}{BESIDE if split == 'test' else ''}": nli.anli(number, split, data)
            for split in ("dev", "test" if there else "dev")
            for number in (1, 2, 3)
        }
    if task == "snli":
        if as_folder(data).find("nli/snli_1.0/snli_1.0_train.jsonl") is not None:
            return nli.snli("train", data), {"": nli.snli("test", data)}
        # Without the whole corpus, the sample of 20,000 pairs. Its test file has neither capitals nor marks.
        return bare(nli.snli_plain("train", data)), {"": nli.snli_plain("test", data)}
    train, tested = native.glue(task, "train", data), native.glue(task, "dev", data)
    # Microsoft's training file of MRPC still holds the rows that GLUE develops with.
    return without(train, tested) if task == "mrpc" else train, {"": tested}


def without(texts: Texts, others: Texts) -> Texts:
    """The pairs that are not among others, however they are spaced.

    >>> pairs = Texts(["a", "b"], ["c", "d"], np.array([0, 1]))
    >>> without(pairs, pairs.take(np.array([1]))).first
    ['a']
    """

    def pairs(some: Texts) -> list[tuple[str, str]]:
        return [(" ".join(a.split()), " ".join(b.split())) for a, b in zip(some.first, some.second or [], strict=True)]

    known = set(pairs(others))
    return texts.take(np.array([row for row, pair in enumerate(pairs(texts)) if pair not in known], dtype=np.int64))


def bare(texts: Texts) -> Texts:
    """The same texts in lower case and without punctuation.

    >>> bare(Texts(["A man, sitting."], ["It's well-known!"], None)).second
    ["it 's well-known"]
    """

    def stripped(text: str) -> str:
        return " ".join(word for word in words(text.lower()) if any(c.isalnum() for c in word))

    second = None if texts.second is None else [stripped(text) for text in texts.second]
    return replace(texts, first=[stripped(text) for text in texts.first], second=second)


def joined(parts: list[Texts]) -> Texts:
    """Several sets of texts as one."""
    return Texts(
        [text for part in parts for text in part.first],
        None if parts[0].second is None else [text for part in parts for text in part.second or ()],
        np.concatenate([part.labels for part in parts if part.labels is not None]),
        parts[0].classes,
    )


def classes_of(task: str) -> tuple[str, ...]:
    """The classes of a task, none where it gives scores."""
    return native.TASKS[task].classes if task in native.TASKS else nli.CLASSES


def statement(draw: random.Random) -> list[str]:
    """Somebody does something to somebody somewhere."""
    subject, thing = draw.sample(NOUNS, 2)
    return ["the", subject, draw.choice(VERBS), "the", thing, "in", "the", draw.choice(PLACES), draw.choice(EXTRAS)]


def generated(task: str, count: int, seed: int) -> Texts:
    """A language of fifty words with the questions of GLUE.

    cola: are the words in order? sst-2: of which mood is the adjective? sts-b: how many words of a statement were blotted
    out, 5 for none? Two classes of pairs: do both sentences say that it happens, or both that it does not? Three: is it
    said again, is something else said, is it denied?

    >>> texts = generated("rte", 4, seed=0)
    >>> len(texts.first), texts.classes
    (4, ('entailment', 'not_entailment'))
    """
    draw, classes = random.Random(seed), classes_of(task)
    first: list[str] = []
    second: list[str] = []
    labels: list[int] = []
    for number in range(count):
        said, other, label = statement(draw), statement(draw), number % max(1, len(classes))
        if task == "cola":
            said = draw.sample(said, len(said)) if label == 0 else said
        elif task == "sst-2":
            said.insert(draw.choice((1, 4)), draw.choice(MOODS[label]))
        elif not classes:
            places = draw.sample((1, 2, 4, 7, 8), draw.randrange(6))
            second.append(" ".join("something" if i in places else word for i, word in enumerate(said)))
            label = 5 - len(places)
        elif len(classes) == 3:
            second.append(" ".join((said[:5], other[:5], ["never", *said[:5]])[label]))
        else:
            denied = draw.random() < 0.5
            second.append(" ".join(["never", *said[:5]] if denied == (label == 0) else said[:5]))
            said = ["never", *said] if denied else said
        first.append(" ".join(said))
        labels.append(label)
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


def trimmed(inputs: dict[str, Tensor], targets: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """A batch without the columns that are padding in every row."""
    longest = int(inputs["attention_mask"].sum(-1).max())
    return {name: tensor[:, :longest] for name, tensor in inputs.items()}, targets


def as_targets(texts: Texts) -> Tensor:
    """Classes as integers, scores as floats."""
    assert texts.labels is not None
    labels = torch.from_numpy(texts.labels)
    return labels.long() if texts.classes else labels.float()
