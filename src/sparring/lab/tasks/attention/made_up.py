"""Texts that are made up, for `tiny`: each kind can only be answered by reading what its real counterpart asks to read."""

import numpy as np

POSITIVE = ("good", "great", "fine", "lovely", "moving", "brilliant", "funny", "warm", "clever", "superb")
NEGATIVE = ("bad", "dull", "awful", "boring", "weak", "tedious", "clumsy", "empty", "bland", "poor")
PARTS = ("film", "story", "plot", "cast", "ending", "music", "script", "first act", "camera", "direction")
ABOUT = ("", "", "", "from start to end", "in every scene", "this time")
DEGREES = ("", "", "quite", "simply", "all in all")
ANIMALS = ("cat", "dog", "horse", "bird", "fish", "mouse")
PLACES = ("garden", "kitchen", "street", "field", "office", "river")
MOODS = ("happily", "slowly", "quietly", "again")
VERBS = ("met", "saw", "called", "left")

Words = list[str]


def made_up(count: int, seed: int) -> tuple[list[Words], list[int]]:
    """Short reviews from a small grammar, and their labels; a loaded word counts the other way round after "not" or "never".

    >>> texts, labels = made_up(2, seed=0)
    >>> " ".join(texts[1]), labels[1]
    ('the cast this time was funny and the film this time is quite clever .', 1)
    """
    random = np.random.default_rng(seed)

    def one(words: tuple[str, ...]) -> str:
        return words[int(random.integers(len(words)))]

    texts, labels = [], []
    for _ in range(count):
        label, words = int(random.integers(2)), list[str]()
        for part in range(int(random.integers(1, 3))):
            turned = random.random() < 0.25
            loaded = one(POSITIVE if label != turned else NEGATIVE)
            link = ("is not", "was never") if turned else ("is", "was", "feels")
            opening = ("the", "its", "this") if not part else ("and the", "and its")
            words += [
                *one(opening).split(),
                *one(PARTS).split(),
                *one(ABOUT).split(),
                *one(link).split(),
                *one(DEGREES).split(),
                loaded,
            ]
        texts.append([*words, "."])
        labels.append(label)
    return texts, labels


def inferred(count: int, seed: int) -> tuple[list[Words], list[Words], list[int]]:
    """Premises, hypotheses and labels: 0 the same place (entailment), 1 a mood nobody spoke of (neutral), 2 another place.

    >>> premise, hypothesis, label = (part[0] for part in inferred(1, seed=1))
    >>> " ".join(premise), " ".join(hypothesis), label
    ('the bird is in the office', 'the bird is in the office happily', 1)
    """
    random = np.random.default_rng(seed)
    premises, hypotheses, labels = [], [], []
    for _ in range(count):
        label, animal, place = (int(random.integers(n)) for n in (3, len(ANIMALS), len(PLACES)))
        other = (place + int(random.integers(1, len(PLACES)))) % len(PLACES)
        told = ["the", ANIMALS[animal], "is", "in", "the"]
        mood = [MOODS[int(random.integers(len(MOODS)))]] if label == 1 else []
        premises.append([*told, PLACES[place]])
        hypotheses.append([*told, PLACES[other if label == 2 else place], *mood])
        labels.append(label)
    return premises, hypotheses, labels


def clozes(count: int, seed: int, entities: int = 8) -> tuple[list[Words], list[Words], list[str]]:
    """Passages in which entities do things to each other, a sentence of each with a hole, and who belongs there.

    >>> passage, question, answer = (part[0] for part in clozes(1, seed=0))
    >>> " ".join(passage), " ".join(question), answer
    ('@entity2 met @entity4 . @entity3 left @entity6 . @entity5 called @entity0', '@placeholder called @entity0', '@entity5')
    """
    random = np.random.default_rng(seed)
    passages, questions, answers = [], [], []
    for _ in range(count):
        who = [f"@entity{k}" for k in random.permutation(entities)[:6]]
        doing = [VERBS[k] for k in random.integers(len(VERBS), size=3)]
        facts = [[who[2 * k], doing[k], who[2 * k + 1]] for k in range(3)]
        asked = facts[int(random.integers(3))]
        passages.append([*facts[0], ".", *facts[1], ".", *facts[2]])
        questions.append(["@placeholder", *asked[1:]])
        answers.append(asked[0])
    return passages, questions, answers
