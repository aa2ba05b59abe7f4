"""Sampled softmax: the cross-entropy over a large vocabulary, estimated from some of its words.

The words are drawn without replacement in proportion to their frequency. Each word waits for a time that is exponential
with its frequency as rate; the first ones are taken. Given the time of the first that is not taken, a word was in the
sample with probability `1 - exp(-share * time)`, which corrects the logits.

>>> import torch
>>> share = torch.tensor([0.5, 0.3, 0.1, 0.1])
>>> h, table, bias = torch.randn(6, 3), torch.randn(4, 3), torch.zeros(4)
>>> sampled_surprise(h, torch.tensor([0, 1, 2, 3, 0, 1]), table, bias, share, count=2).shape
torch.Size([6])
"""

import torch
from torch import Tensor

from .head import Surprise


def sampled_surprise(h: Tensor, targets: Tensor, table: Tensor, bias: Tensor, share: Tensor, count: int) -> Tensor:
    """Minus the log-probability of `targets` among themselves and `count` sampled words, (N,).

    Args:
        h: states (N, d).
        targets: words (N,).
        table: output weights (V, d).
        bias: output bias (V,).
        share: frequency of each word (V,).
        count: words drawn for all rows together; the whole vocabulary, exactly, where that is smaller or `count` is 0.

    Paper: Jean et al., On Using Very Large Target Vocabulary for Neural Machine Translation (2015).
    """
    known = int((share > 0).sum())
    if not count or count >= known - 1:
        found: Tensor = Surprise.apply(h, table, bias, targets)
        return found
    waiting = torch.empty_like(share).exponential_() / share  # infinite for a word that never occurs
    times, chosen = waiting.topk(count + 1, largest=False)
    chosen, time = chosen[:-1], times[-1]

    def corrected(logits: Tensor, words: Tensor) -> Tensor:
        return logits - torch.log(-torch.expm1(-share[words] * time)).clamp_min(torch.finfo(h.dtype).min / 4)

    right = corrected((h * table[targets]).sum(-1) + bias[targets], targets)
    others = corrected(torch.addmm(bias[chosen], h, table[chosen].t()), chosen)
    others = others.masked_fill(targets[:, None] == chosen, -torch.inf)  # the right word counts once
    return torch.logaddexp(others.logsumexp(-1), right) - right
