import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import sparring as sp
from sparring.players.interpretable import differ, row_sums
from sparring.players.player import Game
from sparring.sites.site import Slot

READINGS = ("paper", "attached", "per_word", "row_sum")


def player(reading, radius=2.0, rows=False):
    ball = sp.Linf if reading == "per_word" else sp.L2
    return sp.Interpretable(ball(radius, rows=rows), reading=reading)


def linear_game(scores, gradient, valid=None):
    """A game whose payoff has the given gradient at the scores."""
    slots = [Slot("attention", scores, valid)]
    clean = torch.zeros(len(scores), 2)
    return Game(slots, lambda values: (values[0] * gradient).flatten(1).sum(1), clean, clean, [], len(scores))


def naive(scores, gradient, valid, reading, radius):
    """Equations 13-18 as written, with the B x T x T tensors, for one sentence of T valid scores."""
    kept = scores[valid]
    difference = kept[:, None] - kept[None, :]  # (T, T), eq. 13
    length = difference.norm(dim=-1, keepdim=True)
    unit = torch.where(length > 0, difference / length.clamp_min(1e-300), 0.0)  # eq. 14
    in_alpha = gradient[valid][:, None] * unit  # gradient of the loss in alpha, from r = (alpha * unit).sum(-1), eq. 15
    if reading == "per_word":
        norms = in_alpha.norm(dim=-1, keepdim=True)
        alpha = torch.where(norms > 0, radius * in_alpha / norms.clamp_min(1e-300), 0.0)
        found = (alpha * unit).sum(-1)
    elif reading == "row_sum":
        sums = in_alpha.sum(-1)
        found = torch.where(sums.norm() > 0, radius * sums / sums.norm().clamp_min(1e-300), 0.0)
    else:
        norm = in_alpha.norm()
        alpha = torch.where(norm > 0, radius * in_alpha / norm.clamp_min(1e-300), 0.0)  # eq. 18
        found = (alpha * unit).sum(-1)
    result = torch.zeros_like(scores)
    result[valid] = found
    return result


@pytest.mark.parametrize("reading", READINGS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_every_reading_equals_the_equations_written_out(reading, data):
    length = data.draw(st.integers(1, 7))
    seed = data.draw(st.integers(0, 10_000))
    generator = torch.Generator().manual_seed(seed)
    scores, gradient = torch.randn(2, 3, length, dtype=torch.double, generator=generator)
    scores = scores.round(decimals=data.draw(st.sampled_from([0, 8])))  # ties happen
    valid = torch.arange(length) < torch.tensor([length, max(1, length - 2), 1])[:, None]
    (found,) = player(reading).respond(linear_game(scores, gradient, valid)).values
    for row in range(3):
        expected = naive(scores[row], gradient[row], valid[row], reading, 2.0)
        torch.testing.assert_close(found[row], expected, rtol=1e-9, atol=1e-9)
    assert (found[~valid] == 0).all()


def test_the_papers_reading_is_attention_adversarial_training():
    torch.manual_seed(0)
    scores, gradient = torch.randn(2, 4, 6, dtype=torch.double)
    valid = torch.arange(6) < torch.tensor([6, 5, 3, 2])[:, None]
    game = linear_game(scores, gradient, valid)
    (plain,) = sp.FastGradient(sp.L2(3.0)).respond(game).values
    for reading in ("paper", "attached"):
        (interpretable,) = player(reading, 3.0).respond(game).values
        assert torch.equal(interpretable, plain)


def test_learning_through_the_differences_adds_nothing():
    """The `attached` reading, differentiated for real: the derivative of alpha . d / |d| in the scores is zero at alpha ~ d."""
    torch.manual_seed(0)
    scores = torch.randn(6, dtype=torch.double, requires_grad=True)
    gradient = torch.randn(6, dtype=torch.double)
    difference = scores[:, None] - scores[None, :]
    unit = difference / difference.norm(dim=-1, keepdim=True)
    in_alpha = gradient[:, None] * unit.detach()
    alpha = 2.0 * in_alpha / in_alpha.norm()
    through = torch.stack([torch.autograd.grad(r, scores, retain_graph=True)[0] for r in (alpha * unit).sum(-1)])
    assert through.abs().max() < 1e-14
    away = alpha.roll(1, 0)  # any other alpha does learn through the differences, so the check above has teeth
    other = torch.stack([torch.autograd.grad(r, scores, retain_graph=True)[0] for r in (away * unit).sum(-1)])
    assert other.abs().max() > 1e-2


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize(
    "scores",
    [torch.tensor([[0.3]]), torch.full((1, 5), 0.1), torch.full((1, 5), -1e30)],
    ids=["one word", "equal", "equal, huge"],
)
def test_without_differences_nothing_moves_and_nothing_is_nan(reading, scores):
    response = player(reading).respond(linear_game(scores, torch.ones_like(scores)))
    assert response.values[0].tolist() == torch.zeros_like(scores).tolist()
    assert response.unperturbed.tolist() == [True]


@pytest.mark.parametrize("reading", READINGS)
def test_the_radius_binds_per_sentence_and_per_query_row(reading):
    torch.manual_seed(0)
    scores, gradient = torch.randn(2, 3, 2, 4, 5)
    valid = torch.ones(3, 1, 4, 5, dtype=torch.bool)
    valid[1, :, :, 3:] = False
    for rows in (False, True):
        (found,) = player(reading, 2.0, rows).respond(linear_game(scores, gradient, valid)).values
        lengths = found.norm(dim=-1) if rows else found.flatten(1).norm(dim=-1)
        if reading == "per_word":
            lengths = found.abs().amax(-1)
        torch.testing.assert_close(lengths, torch.full_like(lengths, 2.0))
        assert (found[1, :, :, 3:] == 0).all()


@pytest.mark.parametrize("reading", READINGS)
def test_broken_gradients_leave_the_example_alone(reading):
    scores = torch.tensor([[0.0, 1.0], [0.0, 1.0], [0.0, 1.0]])
    gradient = torch.tensor([[1.0, -1.0], [math.nan, 1.0], [0.0, 0.0]])
    response = player(reading).respond(linear_game(scores, gradient))
    assert response.unperturbed.tolist() == [False, True, True]
    assert torch.isfinite(response.values[0]).all()
    assert (response.values[0][1:] == 0).all()


def test_row_sums_of_close_scores_do_not_lose_their_squares():
    scores = torch.tensor([[1.0, 1.0, 3.0]])
    torch.testing.assert_close(row_sums((scores - 1) * 1e-25), row_sums(scores))
    assert differ(torch.tensor([[1.0, 1.0 + 1e-7]])).item()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: sp.Interpretable(sp.L2(1.0), reading="batch"), "choose one of paper"),
        (lambda: sp.Interpretable(sp.L2(1.0), reading="per_word"), r"bounded by Linf\(radius\)"),
        (lambda: sp.Interpretable(sp.Linf(1.0), reading="paper"), r"bounded by L2\(radius\)"),
        (lambda: sp.WordDirections(nn.Embedding(5, 2, padding_idx=0), neighbours=4), "has 1 to 3 others"),
        (lambda: sp.WordDirections(nn.Embedding(5, 2), neighbours=2, refresh=0), "at least 1 step"),
    ],
)
def test_errors_name_the_fix(build, message):
    with pytest.raises(ValueError, match=message):
        build()


# -- words ------------------------------------------------------------------------------------------------------------


def vocabulary(count=12, size=5, **options):
    torch.manual_seed(0)
    embedding = nn.Embedding(count, size, padding_idx=0).double()
    return embedding, sp.WordDirections(embedding, **options)


def word_game(directions, ids, gradient):
    """A game at the embedding, as an objective would lay it out."""
    slots = []
    wrapped = nn.Sequential()
    wrapped.embedding = directions.embedding
    sp.perturbed_call(wrapped, {sp.Words("embedding"): lambda slot: slots.append(slot)}, ids)
    slots = [s.bare() for s in slots]
    clean = torch.zeros(len(ids), 2)
    return Game(slots, lambda values: (values[0] * gradient).flatten(1).sum(1), clean, clean, [], len(ids))


def naive_words(embedding, ids, gradient, radius, neighbours):
    """Word iAT for one sentence, word by word."""
    table, moves = embedding.weight.detach(), torch.zeros_like(gradient)
    for t, word in enumerate(ids.tolist()):
        if word == 0:
            continue
        others = [k for k in range(1, len(table)) if k != word]
        likeness = {k: float(torch.cosine_similarity(table[word], table[k], dim=0)) for k in others}
        chosen = sorted(others, key=lambda k: -likeness[k])[:neighbours]
        directions = torch.stack([(table[k] - table[word]) / (table[k] - table[word]).norm() for k in chosen])
        weights = directions @ gradient[t]
        moves[t] = (weights / weights.norm()) @ directions
    return radius * moves / moves.norm()


@pytest.mark.parametrize("neighbours", [1, 3, None])
def test_word_directions_equal_the_naive_loop(neighbours):
    embedding, directions = vocabulary(neighbours=neighbours)
    ids = torch.tensor([[3, 7, 3, 9], [5, 2, 0, 0]])
    gradient = torch.randn(2, 4, 5, dtype=torch.double)
    game = word_game(directions, ids, gradient)
    (found,) = sp.Interpretable(sp.L2(15.0), words=directions).respond(game).values
    for row in range(2):
        torch.testing.assert_close(found[row], naive_words(embedding, ids[row], gradient[row], 15.0, neighbours))
    assert (found[1, 2:] == 0).all()


def test_the_vocabulary_is_worked_through_in_blocks(monkeypatch):
    _, directions = vocabulary(neighbours=None)
    ids, gradient = torch.tensor([[3, 7, 3, 9]]), torch.randn(1, 4, 5, dtype=torch.double)
    game = word_game(directions, ids, gradient)
    (whole,) = sp.Interpretable(sp.L2(1.0), words=directions).respond(game).values
    monkeypatch.setattr("sparring.players.directions.CELLS", 1)
    (blocks,) = sp.Interpretable(sp.L2(1.0), words=directions).respond(game).values
    torch.testing.assert_close(blocks, whole)
    nearest = vocabulary(neighbours=3)[1].nearest(torch.arange(1, 12))
    monkeypatch.undo()
    assert torch.equal(nearest, vocabulary(neighbours=3)[1].nearest(torch.arange(1, 12)))


def test_neighbours_are_looked_for_again_after_refresh_steps():
    embedding, directions = vocabulary(neighbours=1, refresh=2)
    before = directions.nearest(torch.tensor([1])).item()
    with torch.no_grad():  # another word moves next to word 1
        other = next(k for k in range(2, 12) if k != before)
        embedding.weight[other] = 2 * embedding.weight[1]
    directions.step = 1
    assert directions.nearest(torch.tensor([1])).item() == before
    directions.step = 2
    assert directions.nearest(torch.tensor([1])).item() == other


def test_a_word_with_a_twin_has_no_direction_to_it():
    embedding, directions = vocabulary(neighbours=None)
    with torch.no_grad():
        embedding.weight[4] = embedding.weight[3]
    ids, gradient = torch.tensor([[3]]), torch.randn(1, 1, 5, dtype=torch.double)
    (found,) = sp.Interpretable(sp.L2(1.0), words=directions).respond(word_game(directions, ids, gradient)).values
    assert torch.isfinite(found).all()
    assert math.isclose(found.norm(), 1.0)


def test_two_calls_of_one_embedding_keep_their_words_apart():
    embedding, _ = vocabulary(neighbours=2)

    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = embedding

        def forward(self, first, second):
            return self.embedding(first).sum() + self.embedding(second).sum()

    seen = {}
    sp.perturbed_call(
        Pair(),
        {sp.Words("**"): lambda slot: seen.update({slot.name: slot.words})},
        torch.tensor([[3, 4]]),
        torch.tensor([[5]]),
    )
    assert {name: words.tolist() for name, words in seen.items()} == {"embedding": [[3, 4]], "embedding#1": [[5]]}
