"""Recall@k and NDCG@k of recommendation lists, and the strong-generalisation protocol that streams them over users.

The protocol (Liang et al. 2018, used in section 3.3 of Boluki et al. 2020): a user the model never saw shows part of
their items (*fold-in*); the model scores all items; fold-in items leave the ranking; the list is judged against the
items that were *held out*. Users without held-out items cannot be judged: they are counted, never averaged.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor


class CSR(Protocol):
    """What is read of a sparse users x items matrix: SciPy's `csr_matrix` and `csr_array` both fit."""

    @property
    def shape(self) -> Any: ...

    @property
    def indptr(self) -> Any: ...

    @property
    def indices(self) -> Any: ...

    @property
    def data(self) -> Any: ...

    def __getitem__(self, rows: Any) -> Any: ...


def recall_at_k(scores: Tensor, relevant: Tensor, k: int) -> Tensor:
    """Share of a user's relevant items found in the top k: hits / min(k, number of relevant items), one per user.

    >>> scores = torch.tensor([[0.9, 0.1, 0.8, 0.3]])
    >>> recall_at_k(scores, torch.tensor([[True, True, False, False]]), k=2)
    tensor([0.5000])

    Args:
        scores: (B, items) higher is better; `-inf` takes an item out of the ranking.
        relevant: (B, items) which items count as hits; a user without any gets 0.
        k: length of the list. Longer than the catalogue means the whole catalogue.
    """
    hits = top_hits(scores, relevant, k)
    return _recall(hits, relevant.bool().sum(-1), k)


def ndcg_at_k(scores: Tensor, relevant: Tensor, k: int) -> Tensor:
    """Discounted gain of the top k over the best one possible; a hit at rank r is worth 1 / log2(r + 1).

    >>> scores = torch.tensor([[0.9, 0.1, 0.8, 0.3]])
    >>> ndcg_at_k(scores, torch.tensor([[True, False, True, False]]), k=4)
    tensor([1.])

    Args:
        scores: (B, items) higher is better; `-inf` takes an item out of the ranking.
        relevant: (B, items) which items count as hits; a user without any gets 0.
        k: length of the list. Longer than the catalogue means the whole catalogue.
    """
    hits = top_hits(scores, relevant, k)
    return _ndcg(hits, relevant.bool().sum(-1), k)


def top_hits(scores: Tensor, relevant: Tensor, k: int) -> Tensor:
    """Which of the k best-scored items are relevant, best first: (B, min(k, items)) booleans.

    >>> top_hits(torch.tensor([[0.1, 0.9, 0.5]]), torch.tensor([[True, False, True]]), k=2)
    tensor([[False,  True]])
    """
    if k < 1:
        raise ValueError(f"k={k} is no list length; use k >= 1")
    if scores.shape != relevant.shape or scores.dim() != 2:
        raise ValueError(
            f"scores {tuple(scores.shape)} and relevant {tuple(relevant.shape)} must share one (users, items) shape"
        )
    best = scores.topk(min(k, scores.shape[1]), dim=-1)
    if best.values.isnan().any():  # torch ranks NaN above everything: one anywhere shows up here
        raise ValueError("scores hold NaN, which has no place in a ranking; use -inf for items to leave out")
    return relevant.bool().gather(-1, best.indices) & (best.values > -torch.inf)


@dataclass(frozen=True)
class RankingReport:
    """Averages over the users that could be judged.

    Attributes:
        means: metric name (`recall@20`, `ndcg@100`) -> mean over users.
        errors: metric name -> standard error of that mean; NaN of one user.
        users: how many users were averaged.
        skipped: how many had no held-out item and were left out.
    """

    means: dict[str, float]
    errors: dict[str, float]
    users: int
    skipped: int

    def __getitem__(self, metric: str) -> float:
        return self.means[metric]


def evaluate_ranking(
    score: Callable[[Any], Any],
    fold_in: CSR,
    held_out: CSR,
    *,
    recall: Sequence[int] = (20, 50),
    ndcg: Sequence[int] = (100,),
    batch_size: int = 500,
) -> RankingReport:
    """Judge a recommender on users it never saw, holding one batch of dense scores at a time.

    >>> from scipy.sparse import csr_array
    >>> fold_in, held_out = csr_array([[1, 0, 0, 0]]), csr_array([[0, 0, 1, 0]])
    >>> popularity = torch.tensor([9.0, 5.0, 7.0, 1.0])
    >>> report = evaluate_ranking(lambda rows: popularity.expand(rows.shape[0], -1), fold_in, held_out, recall=[1])
    >>> report["recall@1"], report.users, report.skipped
    (1.0, 1, 0)

    Args:
        score: takes a CSR slice of `fold_in` rows, returns (rows, items) scores (tensor or array).
        fold_in: users x items, what each user shows; never ranked.
        held_out: users x items, what counts as a hit; must not overlap `fold_in`.
        recall: list lengths for Recall@k.
        ndcg: list lengths for NDCG@k.
        batch_size: users scored at once; memory is batch_size x items.
    """
    if tuple(fold_in.shape) != tuple(held_out.shape):
        raise ValueError(f"fold_in is {tuple(fold_in.shape)} but held_out {tuple(held_out.shape)}; make them equal")
    for name, matrix in (("fold_in", fold_in), ("held_out", held_out)):
        if (stored := getattr(matrix, "format", "csr")) != "csr":
            raise ValueError(f"{name} is stored as {stored}, its rows cannot be read as such; pass {name}.tocsr()")
    wanted = [("recall", k, _recall) for k in recall] + [("ndcg", k, _ndcg) for k in ndcg]
    if not wanted or batch_size < 1 or min(k for _, k, _ in wanted) < 1:
        raise ValueError(f"recall={list(recall)}, ndcg={list(ndcg)}, batch_size={batch_size}: all must be at least 1")
    longest = max(k for _, k, _ in wanted)
    users = fold_in.shape[0]
    values: dict[str, list[Tensor]] = {f"{name}@{k}": [] for name, k, _ in wanted}
    for start in range(0, users, batch_size):
        shown, held = fold_in[start : start + batch_size], held_out[start : start + batch_size]
        row, item = _entries(held)
        relevant = torch.zeros(held.shape, dtype=torch.bool, device=row.device)
        relevant[row, item] = True
        counts = torch.bincount(row, minlength=held.shape[0])
        seen = _entries(shown)
        if relevant[seen].any():
            both = int(relevant[seen].nonzero()[0])
            raise ValueError(
                f"user {start + int(seen[0][both])} holds out item {int(seen[1][both])} which is also folded in; "
                "keep them disjoint"
            )
        scores = torch.as_tensor(score(shown)).detach()
        if scores.shape != relevant.shape:
            raise ValueError(f"score returned shape {tuple(scores.shape)}; return {tuple(held.shape)} (users, items)")
        scores = scores.cpu() if scores.is_floating_point() else scores.cpu().double()
        hits = top_hits(scores.index_put(seen, scores.new_tensor(-torch.inf)), relevant, longest)
        judged = counts > 0
        hits, counts = hits[judged], counts[judged]
        for name, k, metric in wanted:
            values[f"{name}@{k}"].append(metric(hits, counts, k))
    flat = {name: torch.cat(parts).double() if parts else torch.zeros(0) for name, parts in values.items()}
    counted = len(next(iter(flat.values())))
    if counted == 0:
        raise ValueError(f"none of the {users} users has a held-out item; there is nothing to average")
    return RankingReport(
        means={name: value.mean().item() for name, value in flat.items()},
        errors={name: (value.var(correction=0) / (counted - 1)).sqrt().item() for name, value in flat.items()},
        users=counted,
        skipped=users - counted,
    )


def _recall(hits: Tensor, counts: Tensor, k: int) -> Tensor:
    return hits[:, :k].sum(-1) / counts.clamp(1, k)


def _ndcg(hits: Tensor, counts: Tensor, k: int) -> Tensor:
    gains = 1 / torch.arange(2, k + 2, dtype=torch.float64, device=hits.device).log2()
    best = torch.cat([gains.new_zeros(1), gains.cumsum(0)])  # best[n]: n relevant items at the top
    found = hits[:, :k].double() @ gains[: min(k, hits.shape[1])]
    return (found / best[counts.clamp(1, k)]).float()


def _entries(rows: CSR) -> tuple[Tensor, Tensor]:
    """Rows and columns of what one CSR slice stores, each once; explicit zeros do not count."""
    pointers, columns, data = (torch.as_tensor(x, device="cpu") for x in (rows.indptr, rows.indices, rows.data))
    row = torch.repeat_interleave(torch.arange(rows.shape[0], device="cpu"), pointers.diff())
    column, stored = columns.long(), data != 0
    place = torch.unique(row[stored] * rows.shape[1] + column[stored])
    return place // rows.shape[1], place % rows.shape[1]
