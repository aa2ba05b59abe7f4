"""Beam search: the likeliest sentence that a translator writes, found with the keys and values kept."""

import torch
from torch import Tensor

from .model import END, PAD, START, Translator


@torch.no_grad()
def translate(
    model: Translator, source: Tensor, beam: int = 1, length_penalty: float = 1.0, longest: int | None = None
) -> list[list[int]]:
    """The best sentence found for each source, as numbers of pieces without start and end.

    A beam of 1 is greedy search. Hypotheses are ranked by log-probability / length ** `length_penalty`, the end counted
    in both; a sentence is done when `beam` hypotheses have ended, as in fairseq. A beam that holds every prefix finds the
    best sentence there is.

    >>> _ = torch.manual_seed(0)
    >>> model = Translator(vocabulary=8, width=8, heads=2, layers=1).eval()
    >>> all(len(words) <= 5 for words in translate(model, torch.tensor([[3, 4, 2]]), beam=3, longest=5))
    True

    Args:
        model: in evaluation mode.
        source: (B, S), 0 on padding.
        beam: hypotheses kept for each sentence.
        length_penalty: above 1 favours long sentences.
        longest: pieces of a translation; None is twice its source and ten more.
    """
    if beam < 1:
        raise ValueError(f"translate(beam={beam}): at least 1")
    if model.training:
        raise ValueError("translate needs model.eval(): dropout would change what is written")
    count = len(source)
    if not count:
        return []
    own = 2 * (source != PAD).sum(1) + 10
    limits = own if longest is None else torch.full_like(own, longest)
    cache = model.begin(source)
    cache.select(torch.arange(count, device=source.device).repeat_interleave(beam))
    rows = list(range(count))  # which sentence each group of `beam` rows belongs to
    done: list[list[tuple[float, list[int]]]] = [[] for _ in range(count)]
    words = torch.full((count, beam, 1), START, device=source.device)
    scores = torch.full((count, beam), -torch.inf, device=source.device)
    scores[:, 0] = 0  # at first all rows of a sentence are the same hypothesis
    for length in range(1, int(limits.max()) + 2):
        logs = model.write(words[:, :, -1].reshape(-1, 1), cache)[:, 0].log_softmax(-1)
        logs[:, [PAD, START]] = -torch.inf
        total = scores[:, :, None] + logs.view(len(rows), beam, -1)  # (sentences, beam, vocabulary)
        full = length > limits[rows]  # nothing but the end may follow
        total[full, :, :END] = total[full, :, END + 1 :] = -torch.inf
        best, index = total.flatten(1).topk(min(2 * beam, total[0].numel()))
        parent, word = index // total.shape[-1], index % total.shape[-1]
        ended = (word == END) & best.isfinite()
        for place, rank in ended[:, :beam].nonzero().tolist():
            written = words[place, parent[place, rank], 1:].tolist()
            done[rows[place]].append((float(best[place, rank]) / length**length_penalty, written))
        going = best.masked_fill(word == END, -torch.inf)
        scores, rank_of = going.topk(min(beam, going.shape[1]))
        if scores.shape[1] < beam:  # a vocabulary smaller than the beam
            scores = torch.nn.functional.pad(scores, (0, beam - scores.shape[1]), value=-torch.inf)
            rank_of = torch.nn.functional.pad(rank_of, (0, beam - rank_of.shape[1]))
        parent, word = parent.gather(1, rank_of), word.gather(1, rank_of)
        words = torch.cat([words.gather(1, parent[:, :, None].expand(-1, -1, length)), word[:, :, None]], 2)
        open_ = [
            place for place, row in enumerate(rows) if len(done[row]) < beam and bool(scores[place].isfinite().any())
        ]
        if not open_:
            break
        kept = torch.tensor(open_, device=source.device)
        cache.select((kept[:, None] * beam + parent[kept]).flatten(), sources=len(open_) < len(rows))
        words, scores, rows = words[kept], scores[kept], [rows[place] for place in open_]
    return [max(found, key=lambda one: one[0])[1] if found else [] for found in done]
