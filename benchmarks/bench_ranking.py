"""Recall and NDCG over 10,000 users x 20,000 items: seconds, memory, and ratios to full sorts and to argpartition.

    python benchmarks/bench_ranking.py

The scorer hands out ready random numbers, so what is timed is the evaluation. Goal: all users in seconds, memory
bounded by the batch (the dense score matrix would be 0.8 GB).
"""

import resource
import time

import numpy as np
import torch
from scipy.sparse import csr_array

from harness import interleave
from sparring.metrics.ranking import evaluate_ranking

USERS, ITEMS, LIKES, BATCH = 10_000, 20_000, 80, 500


def users(count: int, seed: int = 0) -> tuple[csr_array, csr_array]:
    """80 likes a user, a fifth of them held out."""
    rng = np.random.default_rng(seed)
    items = np.stack([rng.choice(ITEMS, LIKES, replace=False) for _ in range(count)])
    shown, hidden = items[:, : LIKES * 4 // 5], items[:, LIKES * 4 // 5 :]
    return matrix(np.sort(shown)), matrix(np.sort(hidden))


def matrix(items: np.ndarray) -> csr_array:
    count, each = items.shape
    return csr_array(
        (np.ones(items.size, np.float32), items.ravel(), np.arange(0, items.size + 1, each)), shape=(count, ITEMS)
    )


def by_full_sort(table: torch.Tensor, fold_in: csr_array, held_out: csr_array) -> float:
    """Everything dense and sorted, as a first version would do it."""
    scores = np.where(fold_in.toarray() > 0, -np.inf, table.numpy())
    order = np.argsort(-scores, axis=1)
    gains = np.take_along_axis(held_out.toarray(), order, 1)[:, :100] / np.log2(np.arange(2, 102))
    best = (1 / np.log2(np.arange(2, 102)))[: LIKES // 5].sum()
    return float((gains.sum(1) / best).mean())


def by_argpartition(table: torch.Tensor, fold_in: csr_array, held_out: csr_array) -> float:
    """The usual NumPy version: partition, then sort the hundred."""
    scores = np.where(fold_in.toarray() > 0, -np.inf, table.numpy())
    top = np.argpartition(-scores, 100, axis=1)[:, :100]
    inner = np.argsort(-np.take_along_axis(scores, top, 1), axis=1)
    order = np.take_along_axis(top, inner, 1)
    gains = np.take_along_axis(held_out.toarray(), order, 1) / np.log2(np.arange(2, 102))
    best = (1 / np.log2(np.arange(2, 102)))[: LIKES // 5].sum()
    return float((gains.sum(1) / best).mean())


def main() -> None:
    torch.set_num_threads(1)
    table = torch.randn(BATCH, ITEMS)
    fold_in, held_out = users(USERS)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    evaluate_ranking(lambda rows: table[: rows.shape[0]], fold_in, held_out, batch_size=BATCH)
    seconds = time.process_time() - start
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(f"{USERS:,} users x {ITEMS:,} items: {seconds:.1f} s CPU, the process grew by {grown:.0f} MB")

    fold_in, held_out = fold_in[:BATCH], held_out[:BATCH]
    ours = evaluate_ranking(lambda rows: table, fold_in, held_out)["ndcg@100"]
    for other in (by_argpartition, by_full_sort):
        assert abs(ours - other(table, fold_in, held_out)) < 1e-6, "the three versions must agree"
    ratios = interleave(
        ("evaluate_ranking, 500 users", lambda: evaluate_ranking(lambda rows: table, fold_in, held_out)),
        {
            "NumPy argpartition, NDCG@100 only": lambda: by_argpartition(table, fold_in, held_out),
            "NumPy full sort, NDCG@100 only": lambda: by_full_sort(table, fold_in, held_out),
        },
        rounds=7,
        repeats=2,
    )
    for ratio in ratios.values():
        print(ratio.row())


if __name__ == "__main__":
    main()
