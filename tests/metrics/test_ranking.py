"""Ranking metrics against plain-Python definitions, scikit-learn, and invariants."""

import math
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array, random_array
from sklearn.metrics import ndcg_score

from sparring.metrics.ranking import evaluate_ranking, ndcg_at_k, recall_at_k, top_hits


def naive(scores: list[float], relevant: list[bool], k: int) -> tuple[float, float]:
    """Recall and NDCG of one user, straight from the definitions."""
    ranking = sorted((i for i, s in enumerate(scores) if s > -math.inf), key=lambda i: -scores[i])[:k]
    count = sum(relevant)
    if count == 0:
        return 0.0, 0.0
    gain = sum(1 / math.log2(rank + 2) for rank, item in enumerate(ranking) if relevant[item])
    best = sum(1 / math.log2(rank + 2) for rank in range(min(k, count)))
    return sum(relevant[i] for i in ranking) / min(k, count), gain / best


@st.composite
def users(draw: st.DrawFn) -> tuple[list[list[float]], list[list[bool]], int]:
    items, rows = draw(st.integers(1, 12)), draw(st.integers(1, 4))
    order = [draw(st.permutations(range(items))) for _ in range(rows)]
    scores = [[-math.inf if draw(st.booleans()) and s % 3 == 0 else float(s) for s in row] for row in order]
    relevant = [draw(st.lists(st.booleans(), min_size=items, max_size=items)) for _ in range(rows)]
    return scores, relevant, draw(st.integers(1, 15))


@given(users())
@settings(deadline=None)
def test_equal_the_definition(case: tuple[list[list[float]], list[list[bool]], int]) -> None:
    scores, relevant, k = case
    recall = recall_at_k(torch.tensor(scores), torch.tensor(relevant), k)
    ndcg = ndcg_at_k(torch.tensor(scores), torch.tensor(relevant), k)
    for row in range(len(scores)):
        expected = naive(scores[row], relevant[row], k)
        assert (recall[row].item(), ndcg[row].item()) == pytest.approx(expected, abs=1e-6)


@given(users())
@settings(max_examples=50, deadline=None)
def test_only_the_order_matters_and_values_are_shares(case: tuple[list[list[float]], list[list[bool]], int]) -> None:
    scores, relevant = torch.tensor(case[0]), torch.tensor(case[1])
    for metric in (recall_at_k, ndcg_at_k):
        value = metric(scores, relevant, case[2])
        assert torch.all((value >= 0) & (value <= 1 + 1e-6))
        torch.testing.assert_close(value, metric(scores * 3 + 1, relevant, case[2]))
        torch.testing.assert_close(value, metric(scores.flip(-1), relevant.flip(-1), case[2]))


@given(users())
@settings(max_examples=50, deadline=None)
def test_perfect_ranking_scores_one(case: tuple[list[list[float]], list[list[bool]], int]) -> None:
    relevant = torch.tensor(case[1])
    perfect = relevant.float() - torch.arange(relevant.shape[1]) * 1e-3
    expected = relevant.any(-1).float()
    torch.testing.assert_close(recall_at_k(perfect, relevant, case[2]), expected)
    torch.testing.assert_close(ndcg_at_k(perfect, relevant, case[2]), expected)


@pytest.mark.parametrize("k", [1, 5, 40, 60])
def test_ndcg_agrees_with_scikit_learn(k: int) -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(30, 40, generator=generator)
    relevant = torch.rand(30, 40, generator=generator) < 0.2
    assert relevant.any(-1).all()
    expected = ndcg_score(relevant.numpy(), scores.numpy(), k=k)
    assert ndcg_at_k(scores, relevant, k).mean().item() == pytest.approx(expected, abs=1e-6)


def generated(seed: int = 0, rows: int = 57, items: int = 30) -> tuple[csr_array, csr_array, np.ndarray]:
    rng = np.random.default_rng(seed)
    seen = random_array((rows, items), density=0.3, rng=rng, format="csr").toarray() > 0
    held = seen & (rng.random((rows, items)) < 0.4)
    held[5] = False
    return csr_array((seen & ~held).astype(float)), csr_array(held.astype(float)), rng.standard_normal((rows, items))


@pytest.mark.parametrize("batch_size", [1, 7, 57, 500])
def test_streamed_evaluation_equals_the_naive_loop(batch_size: int) -> None:
    fold_in, held_out, table = generated()
    position = iter(range(0, 57, batch_size))

    def score(rows: csr_array) -> np.ndarray:
        start = next(position)
        return table[start : start + rows.shape[0]]

    report = evaluate_ranking(score, fold_in, held_out, recall=(3, 10), ndcg=(5,), batch_size=batch_size)
    shown, relevant = fold_in.toarray() > 0, held_out.toarray() > 0
    ranked = np.where(shown, -np.inf, table)
    judged = [u for u in range(57) if relevant[u].any()]
    for name, k, which in [("recall@3", 3, 0), ("recall@10", 10, 0), ("ndcg@5", 5, 1)]:
        values = [naive(ranked[u].tolist(), relevant[u].tolist(), k)[which] for u in judged]
        assert report[name] == pytest.approx(np.mean(values), abs=1e-6)
        assert report.errors[name] == pytest.approx(np.std(values, ddof=1) / np.sqrt(len(values)), abs=1e-6)
    assert (report.users, report.skipped) == (len(judged), 57 - len(judged))
    assert report.skipped >= 1


def test_fold_in_items_never_fill_the_list() -> None:
    fold_in, held_out = csr_array([[1, 1, 0, 0]]), csr_array([[0, 0, 0, 1]])
    scores = torch.tensor([[9, 8, 1, 2]])
    report = evaluate_ranking(lambda rows: scores, fold_in, held_out, recall=[1], ndcg=[4])
    assert report.means == {"recall@1": 1.0, "ndcg@4": 1.0}


def test_memory_is_bounded_by_the_batch() -> None:
    rng = np.random.default_rng(0)
    fold_in = random_array((4000, 500), density=0.02, rng=rng, format="csr")
    held_out = csr_array((np.ones(4000), rng.integers(0, 500, 4000), np.arange(4001)), shape=(4000, 500))
    fold_in = csr_array(fold_in - fold_in.multiply(held_out))
    widest = 0

    def score(rows: csr_array) -> np.ndarray:
        nonlocal widest
        widest = max(widest, rows.shape[0])
        return rows.toarray()

    tracemalloc.start()
    evaluate_ranking(score, fold_in, held_out, batch_size=50)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert widest == 50
    assert peak < 4000 * 500 * 8 / 4  # numpy's share; the dense score matrix alone would be four times this


def test_explicit_zeros_are_not_interactions() -> None:
    stored_zero = csr_array((np.array([0.0, 1.0]), np.array([0, 1]), np.array([0, 2])), shape=(1, 3))
    held_out = csr_array([[1.0, 0.0, 0.0]])
    report = evaluate_ranking(lambda rows: torch.tensor([[3.0, 9.0, 1.0]]), stored_zero, held_out, recall=[1])
    assert report["recall@1"] == 1.0


def test_bad_input_is_named() -> None:
    fold_in, held_out = csr_array([[1, 0, 0]]), csr_array([[0, 1, 0]])

    def flat(rows: csr_array) -> torch.Tensor:
        return torch.zeros(rows.shape[0], 3)

    with pytest.raises(ValueError, match="none of the 1 users has a held-out item"):
        evaluate_ranking(flat, fold_in, csr_array((1, 3)))
    with pytest.raises(ValueError, match="user 0 holds out item 0"):
        evaluate_ranking(flat, fold_in, fold_in)
    with pytest.raises(ValueError, match=r"\(1, 3\) but held_out \(1, 4\)"):
        evaluate_ranking(flat, fold_in, csr_array((1, 4)))
    with pytest.raises(ValueError, match=r"score returned shape \(1, 2\)"):
        evaluate_ranking(lambda rows: torch.zeros(1, 2), fold_in, held_out)
    square = csr_array(np.triu(np.ones((3, 3)), 1))
    with pytest.raises(ValueError, match=r"held_out is stored as csc.*held_out.tocsr\(\)"):
        evaluate_ranking(lambda rows: torch.zeros(3, 3), csr_array((3, 3)), square.tocsc())
    with pytest.raises(ValueError, match="batch_size=0"):
        evaluate_ranking(flat, fold_in, held_out, batch_size=0)
    with pytest.raises(ValueError, match="k=0"):
        top_hits(torch.zeros(1, 3), torch.zeros(1, 3, dtype=torch.bool), 0)
    with pytest.raises(ValueError, match="NaN"):
        recall_at_k(torch.tensor([[math.nan, 1.0]]), torch.tensor([[True, False]]), 1)
    with pytest.raises(ValueError, match="must share one"):
        ndcg_at_k(torch.zeros(1, 3), torch.zeros(1, 2, dtype=torch.bool), 1)


def test_one_user_has_no_standard_error() -> None:
    fold_in, held_out = csr_array([[1, 0, 0]]), csr_array([[0, 1, 0]])
    report = evaluate_ranking(lambda rows: torch.zeros(1, 3), fold_in, held_out, recall=[1])
    assert math.isnan(report.errors["recall@1"])


def test_a_user_without_relevant_items_gets_zero_not_nan() -> None:
    scores, nothing = torch.randn(2, 5), torch.zeros(2, 5, dtype=torch.bool)
    assert recall_at_k(scores, nothing, 3).tolist() == [0.0, 0.0]
    assert ndcg_at_k(scores, nothing, 3).tolist() == [0.0, 0.0]


def test_ratings_count_as_one_hit_each() -> None:
    scores, ratings = torch.tensor([[0.3, 0.2, 0.1]]), torch.tensor([[2, 0, 5]])
    assert recall_at_k(scores, ratings, 3).tolist() == [1.0]
    torch.testing.assert_close(ndcg_at_k(scores, ratings, 3), ndcg_at_k(scores, ratings > 0, 3))
