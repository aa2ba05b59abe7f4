"""Vocabulary, preparation, padding, order and columns; vectors for a vocabulary; digits as sequences."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparring.lab.data.batches import columns, epoch, pad, windows
from sparring.lab.data.digits import digits, sequences
from sparring.lab.data.preparing import Preparation, between, spaces, words
from sparring.lab.data.records import Texts, holdout
from sparring.lab.data.vectors import Vectors
from sparring.lab.data.vocabulary import PAD, UNK, Vocabulary

SENTENCES = st.lists(st.lists(st.sampled_from("abcdefgh"), max_size=6), max_size=12)
CODES = st.lists(st.lists(st.integers(1, 9), max_size=7), max_size=13)


@given(SENTENCES)
def test_words_survive_the_way_there_and_back(sentences: list[list[str]]) -> None:
    vocabulary = Vocabulary.build(sentences)
    for sentence in sentences:
        assert vocabulary.decode(vocabulary.encode(sentence)) == sentence
    assert vocabulary.words[:2] == (PAD, UNK)
    assert vocabulary.encode(["never seen"]) == [vocabulary.unk]


@given(SENTENCES, st.integers(1, 4), st.integers(0, 5))
def test_the_vocabulary_keeps_the_most_frequent_words(sentences: list[list[str]], minimum: int, size: int) -> None:
    flat = [word for sentence in sentences for word in sentence]
    vocabulary = Vocabulary.build(sentences, minimum, size, extra=("<eos>", "a"))
    kept = vocabulary.words[4:]
    assert vocabulary.words[:4] == (PAD, UNK, "<eos>", "a")
    assert len(kept) <= size
    left = set(flat) - set(vocabulary.words)
    assert all(flat.count(word) >= minimum for word in kept)
    if len(kept) == size and kept:
        assert all(flat.count(word) <= flat.count(kept[-1]) for word in left)
    else:
        assert size == 0 or all(flat.count(word) < minimum for word in left)


def test_a_vocabulary_refuses_nonsense() -> None:
    with pytest.raises(ValueError, match="must be '<pad>' and '<unk>'"):
        Vocabulary(("a", "b"))
    with pytest.raises(ValueError, match="'a' is listed twice"):
        Vocabulary((PAD, UNK, "a", "a"))
    with pytest.raises(ValueError, match="minimum is 0"):
        Vocabulary.build([], minimum=0)


@given(CODES, st.none() | st.integers(1, 4))
def test_padding_can_be_undone(sentences: list[list[int]], length: int | None) -> None:
    numbers, valid = pad(sentences, length=length)
    assert numbers.shape == valid.shape
    assert numbers.shape[1] >= 1
    for row, keep, sentence in zip(numbers, valid, sentences):
        cut = sentence[:length]
        assert row[keep].tolist() == (cut or [0])
        assert int(keep.sum()) == max(1, len(cut))
        assert (row[~keep] == 0).all()


LENGTHS = st.lists(st.integers(1, 20), min_size=1, max_size=40)


@given(LENGTHS, st.integers(1, 7), st.integers(0, 5))
def test_batches_of_like_length_hold_the_examples_that_plain_batches_hold(
    lengths: list[int], size: int, number: int
) -> None:
    plain = epoch(len(lengths), size, number)
    bucketed = epoch(len(lengths), size, number, torch.tensor(lengths))
    assert len(plain) == len(bucketed) == max(1, len(lengths) // size)
    assert sorted(torch.cat(plain).tolist()) == sorted(torch.cat(bucketed).tolist())
    assert [len(b) for b in plain] == [len(b) for b in bucketed]
    spans = sorted((min(lengths[i] for i in b), max(lengths[i] for i in b)) for b in bucketed)
    assert all(high <= low for (_, high), (low, _) in pairwise(spans))


@given(LENGTHS, st.integers(20, 60), st.integers(0, 5), st.integers(1, 3))
def test_batches_by_tokens_fit_and_are_as_many_in_every_epoch(
    lengths: list[int], tokens: int, number: int, parts: int
) -> None:
    made = epoch(len(lengths), 0, number, torch.tensor(lengths), tokens * parts, parts)
    other = epoch(len(lengths), 0, number + 1, torch.tensor(lengths), tokens * parts, parts)
    assert sorted(map(len, made)) == sorted(map(len, other))
    assert all(max(lengths[i] for i in batch) * len(batch) <= tokens * parts for batch in made)
    seen = torch.cat(made).tolist()
    assert len(seen) == len(set(seen))
    assert len(lengths) - len(seen) < parts
    if len(made) > 1:
        assert all(len(batch) % parts == 0 for batch in made)


def test_epochs_differ_and_like_lengths_share_batches() -> None:
    flat = lambda batches: torch.cat(batches).tolist()
    assert flat(epoch(50, 8, 0)) == flat(epoch(50, 8, 0)) != flat(epoch(50, 8, 1))
    lengths = torch.randint(1, 60, (640,))
    waste = lambda batches: sum(lengths[b].max() * len(b) for b in batches) / lengths.sum()
    assert waste(epoch(640, 32, 0, lengths)) < 1.1 < waste(epoch(640, 32, 0))
    assert flat(epoch(640, 32, 0, lengths)) != flat(epoch(640, 32, 1, lengths))
    assert flat(epoch(640, 0, 0, lengths, 600)) != flat(epoch(640, 0, 1, lengths, 600))
    with pytest.raises(ValueError, match="lengths has 2 entries for 3"):
        epoch(3, 1, 0, torch.tensor([1, 2]))
    with pytest.raises(ValueError, match="tokens=5 does not hold 1 example"):
        epoch(2, 1, 0, torch.tensor([9, 3]), tokens=5)
    with pytest.raises(ValueError, match="tokens=5 needs lengths"):
        epoch(2, 1, 0, tokens=5)


@given(st.integers(1, 60), st.integers(1, 7), st.integers(1, 9))
def test_windows_predict_each_next_word_once(size: int, batch: int, steps: int) -> None:
    if batch > size:
        with pytest.raises(ValueError, match="batch is"):
            columns(range(size), batch)
        return
    text = columns(range(size), batch)
    seen = []
    for inputs, targets in windows(text, steps):
        assert inputs.shape == targets.shape
        assert len(inputs) <= steps
        assert torch.equal(targets, inputs + 1)
        seen += inputs.T.flatten().tolist()
    rows = size // batch
    assert sorted(seen) == [i for i in range(rows * batch) if i % rows != rows - 1]


def test_preparation_follows_the_paper_and_leaves_entities_alone() -> None:
    assert Preparation()("In 1999, @entity12 won 3-0!") == ["in", "qq", ",", "@entity12", "won", "qq", "!"]
    assert Preparation(number=None, lower=False, longest=2)("In 1999, yes") == ["In", "1999"]
    assert Preparation(spaces)("8 1\\/2 A\xa0B") == ["qq", "qq", "a\xa0b"]
    assert words("can't won't it's <unk> U.S. ... (a)") == [
        "ca", "n't", "wo", "n't", "it", "'s", "<unk>", "U.S", ".", "...", "(", "a", ")",
    ]  # fmt: skip
    assert Preparation()("") == []
    assert between([["a"] * 3, ["a"], []], 1, 3) == [0, 1]


@given(st.text())
def test_words_lose_nothing_but_space(text: str) -> None:
    assert "".join(words(text)) == "".join(text.split())


def test_vectors_fill_an_embedding() -> None:
    vocabulary = Vocabulary.build([["cat", "dog", "emu"]])
    table = Vectors(["dog", "cat", "yak"], np.arange(6, dtype=np.float32).reshape(3, 2))
    matrix, known = table.embedding(vocabulary)
    assert known == pytest.approx(2 / 3)
    assert matrix[vocabulary.index["cat"]].tolist() == [2, 3]
    assert matrix[vocabulary.pad].tolist() == [0, 0]
    assert 0 < float(matrix[vocabulary.index["emu"]].norm()) < 1


def test_digits_are_those_of_scikit_learn_and_split_for_good() -> None:
    from sklearn.datasets import load_digits

    whole = digits("all")
    assert np.array_equal(np.round(whole.images / 255 * 16), load_digits().images)
    train, test = digits("train"), digits("test")
    assert len(train) + len(test) == 1797
    together = np.concatenate([train.images, test.images]).reshape(1797, -1)
    assert np.array_equal(np.unique(together, axis=0), np.unique(whole.images.reshape(1797, -1), axis=0))
    assert set(test.labels.tolist()) == set(range(10))
    rows, pixels = sequences(test.images), sequences(test.images, "pixels")
    assert np.array_equal(rows.reshape(len(test), -1), pixels[..., 0])
    mixed = sequences(test.images, "pixels", permutation=3)
    assert np.array_equal(np.sort(mixed, axis=1), np.sort(pixels, axis=1))
    assert np.array_equal(mixed, sequences(test.images, "pixels", permutation=3))
    assert not np.array_equal(mixed, pixels)


@given(st.integers(0, 200), st.floats(0, 1), st.integers(0, 5))
def test_a_holdout_splits_everything_once(size: int, fraction: float, seed: int) -> None:
    train, valid = holdout(size, fraction, seed)
    assert sorted([*train, *valid]) == list(range(size))
    assert len(valid) == round(size * fraction)


def test_texts_can_be_chosen_from() -> None:
    texts = Texts(["a", "b", "c"], ["x", "y", "z"], np.array([2, 0, 1]), ("p", "q", "r"))
    part = texts.keep("r", "p")
    assert (part.first, part.second, part.labels.tolist()) == (["a", "b"], ["x", "y"], [0, 1])  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="no class is called 's'"):
        texts.keep("s")
