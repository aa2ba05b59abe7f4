"""Byte-pair pieces: what they keep, and that learning them is repeatable."""

from hypothesis import given
from hypothesis import strategies as st

from sparring.lab.data.pieces import SPECIAL, Pieces

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
