"""What the attention tasks read or make up: sentences with a sentiment, stories with questions."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch

from ...data.babi.stories import Question, babi, questions
from ...data.babi.world import generate
from ...data.batches import pad
from ...data.preparing import Preparation, spaces
from ...data.records import holdout
from ...data.sst import sst
from ...data.vectors import vectors
from ...data.vocabulary import Vocabulary
from ...task import Data, Setting, Split

POSITIVE = ("good", "great", "fine", "lovely", "moving", "brilliant", "funny", "warm", "clever", "superb")
NEGATIVE = ("bad", "dull", "awful", "boring", "weak", "tedious", "clumsy", "empty", "bland", "poor")
NEUTRAL = (
    "the",
    "a",
    "film",
    "story",
    "plot",
    "is",
    "was",
    "and",
    "with",
    "of",
    "its",
    "cast",
    "scene",
    "ending",
    "director",
    "in",
    "this",
    "it",
    "that",
    "by",
)


def trimmed(inputs: Any, targets: Any) -> tuple[Any, Any]:
    """A batch without the columns in which every sentence is padding."""
    if isinstance(inputs, tuple):
        return tuple(trimmed(x, None)[0] for x in inputs), targets
    if inputs.dtype == torch.bool:
        return inputs, targets
    longest = max(1, int((inputs != 0).sum(1).max()))
    return inputs[:, :longest], targets


def made_up(count: int, seed: int) -> tuple[list[list[str]], list[int]]:
    """Sentences of neutral words with one to three loaded ones of the label's kind, and their labels."""
    random = np.random.default_rng(seed)
    texts, labels = [], []
    for _ in range(count):
        label, length = int(random.integers(2)), int(random.integers(5, 13))
        words = [NEUTRAL[k] for k in random.integers(len(NEUTRAL), size=length)]
        for place in random.choice(length, size=int(random.integers(1, 4)), replace=False):
            words[place] = (POSITIVE if label else NEGATIVE)[int(random.integers(10))]
        texts.append(words)
        labels.append(label)
    return texts, labels


def load_sst(setting: Setting) -> Data:
    """Made-up sentences at `tiny`; else the treebank's sentences without the neutral ones: 6,920 / 872 / 1,821."""
    if setting.scale == "tiny":
        parts = {
            name: made_up(count, seed)
            for seed, (name, count) in enumerate((("train", 400), ("dev", 100), ("test", 200)))
        }
    else:
        prepare = Preparation(tokenise=spaces)
        found = {name: sst(name, setting.data, classes=2) for name in ("train", "dev", "test")}
        parts = {
            name: (prepare.all(t.first), [] if t.labels is None else t.labels.tolist()) for name, t in found.items()
        }
    vocabulary = Vocabulary.build(parts["train"][0])
    train, dev, test = (
        Split(pad([vocabulary.encode(s) for s in texts])[0], torch.tensor(labels), trimmed)
        for texts, labels in parts.values()
    )
    extra: dict[str, Any] = {"vocabulary": vocabulary, "labels": ("Neg.", "Pos."), "classes": 2}
    if setting["vectors"]:
        known = vectors(setting["vectors"], setting.data, words=set(vocabulary.words))
        extra["vectors"], extra["coverage"] = known.embedding(vocabulary)
    return Data(train, dev, test, extra)


def asked(task: int, source: str, split: str, count: int, setting: Setting) -> list[Question]:
    """Questions of one bAbI task, newly told or from the published files."""
    if source == "generated":
        return list(questions(generate(task, count, seed=int(split == "test"))))
    return babi(task, split, setting.data)


def answered(
    part: Sequence[Question], spell: Callable[[str], list[str]], vocabulary: Vocabulary, answers: tuple[str, ...]
) -> Split:
    """Questions as (paragraph, question, which answers the paragraph mentions) and the number of the right answer."""
    stories = [[word for fact in q.facts for word in spell(fact)] for q in part]
    mentioned = torch.tensor([[answer in story for answer in answers] for story in stories])
    paragraphs = pad([vocabulary.encode(story) for story in stories])[0]
    asking = pad([vocabulary.encode(spell(q.text)) for q in part])[0]
    targets = torch.tensor([answers.index(q.answer) for q in part])
    return Split((paragraphs, asking, mentioned), targets, trimmed)


def load_babi(task: int) -> Callable[[Setting], Data]:
    """bAbI of one task: `stories` and `tested` say whether to tell new stories or to read the published ones."""

    def load(setting: Setting) -> Data:
        count = setting["questions"]
        train = asked(task, setting["stories"], "train", count, setting)
        test = asked(task, setting["tested"], "test", min(1000, count), setting)
        spell = cache(Preparation().__call__)  # a story's facts come back with each of its questions
        vocabulary = Vocabulary.build([word for text in (*q.facts, q.text) for word in spell(text)] for q in train)
        answers = tuple(sorted({q.answer for q in train}))
        first, second = holdout(len(train), 0.15)
        parts = ([train[i] for i in first], [train[i] for i in second], test)
        fit, check, final = (answered(part, spell, vocabulary, answers) for part in parts)
        return Data(fit, check, final, extra={"vocabulary": vocabulary, "labels": answers, "classes": len(answers)})

    return load
