"""Two texts and an answer: questions about stories (bAbI) and news (CNN), inference (SNLI, MultiNLI); Table 1, appendix A.

The model's first text is the paragraph or the premise (`sentence1`), the second the question or the hypothesis, as in the
released code; attention looks at the first and is asked by the second.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...data.babi.stories import Question, babi, questions
from ...data.babi.world import generate
from ...data.cnn import ENTITY, cnn
from ...data.errors import DataError
from ...data.nli import CLASSES, multinli, snli, snli_plain
from ...data.preparing import Preparation
from ...data.ragged import Lexicon, Ragged
from ...data.records import Texts, alike, holdout
from ...errors import LabError
from ...task import Data, Setting, Split
from .made_up import clozes, inferred
from .texts import SHARES, Examined, known_vectors, shortened

Pair = tuple[np.ndarray, np.ndarray]


def paired(
    rows: Sequence[Pair],
    targets: Sequence[int],
    mentioned: Tensor | None = None,
    kind: type[Split] = Split,
    **more: Any,
) -> Split:
    """Pairs of texts and their answers; `mentioned` (N, answers) says which answers are possible at all.

    Stories differ in length by a factor of ten: batches of first texts of like length take half the time.
    """
    first, second = Ragged([row[0] for row in rows]), Ragged([row[1] for row in rows])

    def collate(index: Tensor, targets: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        texts = (first(index), second(index))
        return (texts if mentioned is None else (*texts, mentioned[index])), targets

    return kind(torch.arange(len(rows)), torch.tensor(targets), collate, first.lengths, **more)


# -- questions whose answer stands in the text ------------------------------------------------------------------------

Asked = tuple[np.ndarray, np.ndarray, str]  # paragraph, question, answer


def answered(parts: Sequence[Sequence[Asked]], lexicon: Lexicon, answers: tuple[str, ...], setting: Setting) -> Data:
    """Questions about paragraphs. Only an answer that the paragraph mentions can be given (the entity mask).

    An answer that no training text mentions cannot be given: its target is -1, so that it counts as wrong.
    """
    fitted = (text for paragraph, question, _ in parts[0] for text in (paragraph, question))
    vocabulary, numbers = lexicon.vocabulary(fitted, setting["minimum"], answers)
    place = {answer: i for i, answer in enumerate(answers)}
    column = np.array([place.get(word, -1) for word in lexicon.index])
    splits = []
    for name, part, kind in zip(("training", "validation", "test"), parts, (Split, Split, Examined), strict=True):
        mentioned = torch.zeros(len(part), len(answers), dtype=torch.bool)
        for row, (paragraph, _, answer) in enumerate(part):
            if not (paragraph == lexicon.index.get(answer, -1)).any():
                raise DataError(
                    f"{setting.task}: the text of {name} question {row + 1} does not mention its answer {answer!r}"
                )
            found = column[paragraph]
            mentioned[row, torch.from_numpy(np.unique(found[found >= 0]))] = True
        targets = [place.get(answer, -1) for _, _, answer in part]
        splits.append(paired([(numbers[p], numbers[q]) for p, q, _ in part], targets, mentioned, kind))
    extra = {"vocabulary": vocabulary, "labels": answers, "classes": len(answers), "pair": True}
    fit, check, test = splits
    return Data(fit, check, test, {**extra, **known_vectors(setting, vocabulary)})


def told(task: int, source: str, split: str, count: int, setting: Setting) -> list[Question]:
    """Questions of one bAbI task, newly told or from the published files."""
    if source == "generated":
        return list(questions(generate(task, count, seed=int(split == "test"))))
    return babi(task, split, setting.data)


def by_story(asked: Sequence[Question]) -> list[list[Question]]:
    """The questions of each story: they share facts, so one that is trained on gives away another that validates."""
    stories: list[list[Question]] = []
    for question in asked:
        if stories and question.facts[: len(stories[-1][-1].facts)] == stories[-1][-1].facts:
            stories[-1].append(question)
        else:
            stories.append([question])
    return stories


def short(part: list[Asked], setting: Setting) -> list[Asked]:
    """The questions whose story has at most `longest` words (0: all)."""
    kept = [asked for asked in part if not setting["longest"] or len(asked[0]) <= setting["longest"]]
    if not kept:
        raise LabError(f"no story of {setting.task} has at most {setting['longest']} words; raise --set longest=...")
    return kept


def load_babi(task: int) -> Callable[[Setting], Data]:
    """bAbI of one task: `stories` and `tested` say whether to tell new stories or to read the published ones.

    At most `questions` are trained and validated with.
    """

    def load(setting: Setting) -> Data:
        train = told(task, setting["stories"], "train", setting["questions"], setting)[: setting["questions"] or None]
        test = told(task, setting["tested"], "test", min(1000, setting["questions"]), setting)
        lexicon = Lexicon()
        prepare = Preparation()
        spell = cache(lambda text: lexicon(prepare(text)))  # a story's facts come back with each of its questions

        def spelt(part: Iterable[Question]) -> list[Asked]:
            return [(np.concatenate([spell(fact) for fact in q.facts]), spell(q.text), q.answer) for q in part]

        stories = by_story(train)
        fit, check = ([q for i in part for q in stories[i]] for part in holdout(len(stories), 0.15))
        parts = [short(spelt(part), setting) for part in (fit, check, test)]
        return answered(parts, lexicon, tuple(sorted({q.answer for q in train})), setting)

    return load


def load_cnn(setting: Setting) -> Data:
    """CNN news: 380,298 / 3,924 / 3,198 questions; the answers are the entities of the training passages."""
    lexicon, parts = Lexicon(), []
    if setting.scale == "tiny":
        for seed, share in enumerate(SHARES):
            made = zip(*clozes(setting["examples"] // share, seed), strict=True)
            parts.append([(lexicon(passage), lexicon(question), answer) for passage, question, answer in made])
    else:
        for name in ("train", "valid", "test"):
            some = islice(cnn(name, setting.data), setting["examples"] or None)
            parts.append([(lexicon(q.passage), lexicon(q.question), q.answer) for q in some])
    words, met = list(lexicon.index), np.zeros(len(lexicon.index), dtype=bool)
    for passage, _, _ in parts[0]:
        met[passage] = True
    entities = [word for word, seen in zip(words, met, strict=True) if seen and ENTITY.fullmatch(word)]
    return answered(parts, lexicon, tuple(sorted(entities, key=lambda word: int(word[7:]))), setting)


# -- inference --------------------------------------------------------------------------------------------------------


def inference(
    parts: Sequence[Texts], setting: Setting, prepare: Preparation, tested: tuple[tuple[str, slice], ...] = ()
) -> Data:
    """Premise, hypothesis and how they relate."""
    lexicon, rows = Lexicon(), []
    for part in parts:
        assert part.second is not None
        rows.append([(lexicon(prepare(a)), lexicon(prepare(b))) for a, b in zip(part.first, part.second, strict=True)])
    vocabulary, numbers = lexicon.vocabulary((text for pair in rows[0] for text in pair), setting["minimum"])
    labels = [part.labels.tolist() for part in parts if part.labels is not None]
    numbered = [[(numbers[a], numbers[b]) for a, b in part] for part in rows]
    extra = {
        "vocabulary": vocabulary,
        "labels": CLASSES,
        "classes": 3,
        "pair": True,
        **known_vectors(setting, vocabulary),
    }
    return Data(
        paired(numbered[0], labels[0]),
        paired(numbered[1], labels[1]),
        paired(numbered[2], labels[2], kind=Examined, parts=tested),
        extra,
    )


def invented(count: int, seed: int) -> Texts:
    """Made-up pairs as texts."""
    first, second, labels = inferred(count, seed)
    return Texts([" ".join(a) for a in first], [" ".join(b) for b in second], np.array(labels), CLASSES)


def load_snli(setting: Setting) -> Data:
    """SNLI: 549,367 / 9,842 / 9,824 pairs from the native files, or the tab-separated sample of 20,000."""
    if setting.scale == "tiny":
        parts = [invented(setting["examples"] // share, seed) for seed, share in enumerate(SHARES)]
    else:
        reader = snli_plain if setting["source"] == "plain" else snli
        parts = shortened(setting, *(reader(name, setting.data) for name in ("train", "dev", "test")))
    return inference(parts, setting, SNLI_WORDS if setting["source"] == "plain" else Preparation())


def load_multinli(setting: Setting) -> Data:
    """MultiNLI: a fifth of the premises of the 392,702 training pairs to validate; both published development parts to test."""
    if setting.scale == "tiny":
        train, matched, mismatched = (
            invented(setting["examples"] // share, seed) for seed, share in enumerate((1, 4, 4))
        )
    else:
        read = [multinli(name, setting.data) for name in ("train", "matched", "mismatched")]
        train, matched, mismatched = shortened(setting, *read)
    same = alike(train.first)  # a premise comes with three hypotheses, one of each class
    fit, check = (np.sort([row for k in part for row in same[k]]) for part in holdout(len(same), 0.2))
    test = Texts(
        [*matched.first, *mismatched.first],
        [*(matched.second or ()), *(mismatched.second or ())],
        np.concatenate([p.labels for p in (matched, mismatched) if p.labels is not None]),
        CLASSES,
    )
    genres = (("matched", slice(0, len(matched))), ("mismatched", slice(len(matched), len(test))))
    return inference((train.take(fit), train.take(check), test), setting, Preparation(), genres)


def without_marks(text: str) -> list[str]:
    """Words alone: the sample's development and test files have lost their punctuation, its training file has not.

    >>> without_marks("A man, sitting.")
    ['A', 'man', 'sitting']
    """
    return [word for word in Preparation(lower=False, number=None)(text) if any(c.isalnum() for c in word)]


SNLI_WORDS = Preparation(tokenise=without_marks)
LOAD: dict[str, Callable[[Setting], Data]] = {
    **{f"babi-{k}": load_babi(k) for k in (1, 2, 3)},
    "cnn-qa": load_cnn,
    "snli-attention": load_snli,
    "multinli-attention": load_multinli,
}
