"""Byte-pair pieces: what they keep, and that learning them is repeatable."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparring.lab.data.pieces import SPECIAL, Pieces
from sparring.lab.data.records import Texts
from sparring.lab.tasks.translation.pairs import encoded

TEXT = ["the lower the newer", "lowest newest widest", "a low wide new the the the"] * 3
PIECES = Pieces.learn(TEXT, 60)


@given(st.lists(st.sampled_from(" ".join(TEXT).split()), min_size=1, max_size=8))
def test_texts_of_known_letters_survive(words: list[str]) -> None:
    text = " ".join(words)
    assert PIECES.decode(PIECES.encode(text)) == text
    assert PIECES.encode_all([text, "the"]) == [PIECES.encode(text), PIECES.encode("the")]


def test_frequent_words_are_one_piece_and_unknown_letters_one_mark() -> None:
    assert len(PIECES.encode("the")) == 1
    assert len(PIECES.encode("widest")) <= 3
    assert 3 in PIECES.encode("µ")
    assert [PIECES.table.token_to_id(mark) for mark in SPECIAL] == [0, 1, 2, 3]
    assert len(PIECES) <= 60


def test_learning_twice_gives_the_same_pieces() -> None:
    assert Pieces.learn(TEXT, 60).table.get_vocab() == PIECES.table.get_vocab()
    assert PIECES.decode([1, *PIECES.encode("new low"), 2, 0]) == "new low"


@pytest.mark.parametrize("mark", SPECIAL[:3])
def test_marks_that_somebody_wrote_are_letters(mark: str) -> None:
    """Where they would become special pieces, a sentence would be cut, trimmed or ended in the middle."""
    texts = [f"{letter}{mark}{other}" for letter in "abc " for other in "xyz "] * 5
    pieces = Pieces.learn([*TEXT, *texts], 80)
    for again in (pieces, pickle.loads(pickle.dumps(pieces))):
        for text in (f"the {mark} low", f"the low{mark}", mark):
            assert not {0, 1, 2} & {*again.encode(text)}
            assert again.decode(again.encode(text)) == text


def test_a_written_padding_is_not_trimmed_away() -> None:
    pieces = Pieces.learn([*TEXT, "<pad>"], 60)
    pairs = encoded(Texts(["the <pad> lower"], ["new <pad> low"], None), pieces)
    inputs, targets = pairs.batch(slice(0, 1))
    assert pieces.decode(inputs["source"][0].tolist()) == "the <pad> lower"
    assert pieces.decode(targets[0].tolist()) == "new <pad> low"
