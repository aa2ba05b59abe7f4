"""bAbI: the format both ways, and a generated world that cannot be told from the published one."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparring.lab.data import DataError
from sparring.lab.data.babi.stories import Story, format_stories, parse_stories, questions, stories
from sparring.lab.data.babi.world import DROPS, GETS, MOVES, PEOPLE, PLACES, THINGS, generate

REAL = {1: ("train", "en-10k"), 2: ("train", "en-10k"), 3: ("train", "v1-1")}
MOVE = re.compile(rf"(\w+) ({'|'.join(sorted(MOVES, key=len, reverse=True))}) to the (\w+)\.")
HANDLE = re.compile(rf"(\w+) ({'|'.join(GETS + DROPS)}) the (\w+)( there)?\.")


@lru_cache
def both(task: int, folder: Path) -> tuple[list[Story], list[Story]]:
    """Generated and published stories of a task, as many of the one as of the other."""
    real = stories(task, REAL[task][0], folder, REAL[task][1])[:400]
    return generate(task, 5 * len(real), seed=2), real


def parsed(text: str) -> list[Story]:
    return parse_stories(enumerate(text.removesuffix("\n").split("\n"), 1))


def words(told: Sequence[Story]) -> set[str]:
    lines = (f"{line.text} {line.answer}" for story in told for line in story)
    return {word for line in lines for word in re.findall(r"\w+|[.?]", line)}


@given(st.sampled_from([1, 2, 3]), st.integers(0, 10_000))
def test_what_is_written_is_read_back(task: int, seed: int) -> None:
    told = generate(task, 10, seed)
    assert parsed(format_stories(told)) == told


@given(st.sampled_from([1, 2, 3]), st.integers(0, 10_000))
def test_every_answer_follows_from_its_supporting_facts_and_nothing_later_changes_it(task: int, seed: int) -> None:
    """An independent reader of the story: only sentences, no hidden state."""
    for question in questions(generate(task, 10, seed)):
        assert len(question.supports) == task
        support = [question.facts[i] for i in question.supports]
        if task == 1:
            name = question.text.removeprefix("Where is ").removesuffix("?")
            moves = [fact for fact in question.facts if fact.startswith(name)]
            assert support == moves[-1:]
            assert support[0].endswith(f"the {question.answer}.")
            continue
        thing = question.text.split()[3]
        touched = [i for i, fact in enumerate(question.facts) if re.search(rf"the {thing}( there)?\.$", fact)]
        assert question.supports[0] == touched[-1]
        who = support[0].split()[0]
        walked = [(i, m[3]) for i, f in enumerate(question.facts) if (m := MOVE.fullmatch(f)) and m[1] == who]
        if task == 2:
            held = HANDLE.fullmatch(support[0])[2] in GETS  # type: ignore[index]
            before = [step for step in walked if held or step[0] < touched[-1]]
            assert before[-1] == (question.supports[1], question.answer)
            assert not held or question.supports[1] > question.supports[0]
        else:
            place = question.text.split()[-1].removesuffix("?")
            at = [i for i, _ in walked].index(question.supports[1])
            assert walked[at][1] == place
            assert walked[at - 1] == (question.supports[2], question.answer)


@pytest.mark.parametrize("task", [1, 2, 3])
def test_the_rules_of_the_world_hold(task: int) -> None:
    for story in generate(task, 100, seed=5):
        place: dict[str, str] = {}
        holder: dict[str, str] = {}
        for line in story:
            if line.answer:
                continue
            if move := MOVE.fullmatch(line.text):
                assert place.get(move[1]) != move[3], "nobody walks to where they are"
                place[move[1]] = move[3]
                continue
            who, verb, thing = HANDLE.fullmatch(line.text).groups()[:3]  # type: ignore[union-attr]
            if verb in GETS:
                assert thing not in holder, "nobody takes what another holds"
                holder[thing] = who
            else:
                assert holder.pop(thing) == who, "nobody drops what they do not hold"


@pytest.mark.parametrize("task", [1, 2, 3])
def test_a_generated_task_has_the_published_words_answers_and_shape(task: int, data_folder: Path) -> None:
    ours, real = both(task, data_folder)
    assert words(ours) == words(real)
    assert {q.answer for q in questions(ours)} == {q.answer for q in questions(real)} == set(PLACES)
    assert {sum(bool(line.answer) for line in story) for story in ours} == {5}
    assert {sum(bool(line.answer) for line in story) for story in real} == {5}


def spacing(told: Sequence[Story]) -> list[int]:
    """Facts between one question and the next."""
    gaps = []
    for story in told:
        asked = [0, *(i for i, line in enumerate(story, 1) if line.answer)]
        gaps += [b - a - 1 for a, b in pairwise(asked)]
    return gaps


def reach(told: Sequence[Story]) -> list[int]:
    """How many facts ago the oldest supporting fact was told."""
    return [len(q.facts) - min(q.supports) for q in questions(told)]


def verbs(told: Sequence[Story]) -> list[str]:
    """Each fact without its names."""
    return [
        re.sub("|".join((*PEOPLE, *PLACES, *THINGS)), "_", line.text)
        for story in told
        for line in story
        if not line.answer
    ]


@pytest.mark.parametrize("task", [1, 2, 3])
@pytest.mark.parametrize("measure", [spacing, reach, verbs, lambda told: [len(story) for story in told]])
def test_a_generated_task_is_as_close_to_the_published_one_as_another_sample_of_itself(
    task: int, measure: Callable[[Sequence[Story]], list[Any]], data_folder: Path
) -> None:
    """No threshold picked by hand: the distance to the real file must be what chance gives between two generated files.

    Permutation test over whole stories (questions of one story are not independent), 999 shuffles; real and generated
    stories are exchangeable under the hypothesis that the generator is right.
    """
    ours, real = both(task, data_folder)
    told = [Counter(measure([story])) for story in (*ours, *real)]
    kinds = sorted(set().union(*told))
    table = np.array([[count[kind] for kind in kinds] for count in told])  # (stories, kinds)
    seen = apart(table[: len(ours)], table[len(ours) :])
    random = np.random.default_rng(0)
    chance = []
    for _ in range(999):
        mixed = random.permutation(table)
        chance.append(apart(mixed[: len(ours)], mixed[len(ours) :]))
    assert seen <= np.quantile(chance, 0.999), f"{seen:.4f} against {np.mean(chance):.4f} by chance"


def apart(ours: np.ndarray, real: np.ndarray) -> float:
    """Total variation between two samples of a discrete quantity, given as counts by story."""
    return float(np.abs(ours.sum(0) / ours.sum() - real.sum(0) / real.sum()).sum() / 2)


def test_published_files_are_written_as_they_were_read(data_folder: Path) -> None:
    from sparring.lab.data.files import Folder

    for task, split, version, name, count in (
        (1, "train", "en-10k", "tasks_1-20_v1-2/en-10k/qa1_single-supporting-fact_train.txt", 10_000),
        (2, "test", "en-10k", "tasks_1-20_v1-2/en-10k/qa2_two-supporting-facts_test.txt", 1_000),
        (3, "train", "v1-1", "tasks_1-20_v1-1/en/qa3_three-supporting-facts_train.txt", 1_000),
    ):
        told = stories(task, split, data_folder, version)
        assert format_stories(told) == Folder(data_folder).text(f"babi/{name}")
        assert sum(1 for _ in questions(told)) == count


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2 A.\n", "line 1: is numbered '2', expected 1"),
        ("1 A.\n2 Where?\tx\n", "line 2: is a question without an answer"),
        ("1 A.\n2 Where? \tx\t7\n", "line 2: names '7' as supporting lines"),
        ("1 A.\n2 Where? \tx\t\n", "line 2: names '' as supporting lines"),
        ("1 \n", "line 1: has a number but no text"),
        ("\n", "holds no story"),
    ],
)
def test_broken_stories_are_named_by_line(text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        parsed(text)


def test_the_generator_refuses_what_it_cannot_tell() -> None:
    with pytest.raises(ValueError, match="task is 4"):
        generate(4)
    with pytest.raises(ValueError, match="questions is 7"):
        generate(1, 7)
