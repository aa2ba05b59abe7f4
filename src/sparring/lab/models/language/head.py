"""Losses and penalties over a whole vocabulary that never hold the logits of a whole window.

A window of 70 x 20 words over 10,000 words is 14 million logits, and a penalty between two passes would hold two such
tensors and their difference. Here cross-entropy and KL go through the output layer a few rows at a time, forwards and
backwards, and the squared distance of the logits needs no logits at all:

    sum_v (w_v . a - w_v . b)^2 = (a - b)^T (W^T W) (a - b)

with the same value and the same gradients, for the price of one small matrix a step.
"""

from typing import Any

import torch
from torch import Tensor

from ....penalties import per_example
from .awd_lstm import AWDLSTM

ROWS = 128  # logits held at once: 128 rows of 10,000 words are 5 MB, which stay in a processor's cache


class Surprise(torch.autograd.Function):
    """`cross_entropy(h @ W.T + b, targets, reduction="none")`, a few rows of logits at a time; computed again for the gradient."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, table: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
        """(N, d), (V, d), (V,), (N,) -> (N,)."""
        normaliser, right = h.new_empty(len(h)), h.new_empty(len(h))
        for start in range(0, len(h), ROWS):
            part = slice(start, start + ROWS)
            logits = torch.addmm(bias, h[part], table.t())
            normaliser[part] = logits.logsumexp(1)
            right[part] = logits.gather(1, targets[part, None])[:, 0]
        ctx.save_for_backward(h, table, bias, targets, normaliser)
        return normaliser - right

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients by the states, the table and the bias."""
        (slope,) = gradients
        h, table, bias, targets, normaliser = ctx.saved_tensors
        by_h = torch.empty_like(h)
        by_table = torch.zeros_like(table) if ctx.needs_input_grad[1] else None
        by_bias = torch.zeros_like(bias) if ctx.needs_input_grad[2] else None
        for start in range(0, len(h), ROWS):
            part = slice(start, start + ROWS)
            q = torch.addmm(bias, h[part], table.t()).sub_(normaliser[part, None]).exp_()
            q[torch.arange(len(q), device=q.device), targets[part]] -= 1
            q.mul_(slope[part, None])
            torch.mm(q, table, out=by_h[part])
            if by_table is not None:
                by_table.addmm_(q.t(), h[part])
            if by_bias is not None:
                by_bias += q.sum(0)
        return by_h, by_table, by_bias, None


class Divergence(torch.autograd.Function):
    """KL(p || q), and with `both` also KL(q || p), of the softmaxes of two sets of logits, a few rows at a time."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, table: Tensor, bias: Tensor, both: bool) -> Tensor:
        """(N, d), (N, d), (V, d), (V,) -> (N,)."""
        ctx.save_for_backward(a, b, table, bias)
        ctx.both = both
        pieces = []
        for x, y in zip(a.split(ROWS), b.split(ROWS)):
            p, q, gap = _softmaxes(x, y, table, bias)
            pieces.append(((p - q).mul_(gap) if both else p.mul_(gap)).sum(1))
        return torch.cat(pieces)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients by both sets of states, the table and the bias."""
        (slope,) = gradients
        a, b, table, bias = ctx.saved_tensors
        by_a, by_b, by_table, by_bias = (torch.zeros_like(x) for x in (a, b, table, bias))
        for start in range(0, len(a), ROWS):
            part = slice(start, start + ROWS)
            p, q, gap = _softmaxes(a[part], b[part], table, bias)
            change = p - q
            left = (gap - (p * gap).sum(1, keepdim=True)).mul_(p)  # of KL(p || q) by the logits of p
            right = -change
            if ctx.both:
                right = right.add_(((q * gap).sum(1, keepdim=True) - gap).mul_(q))  # of KL(q || p) by the logits of q
                left = left.add_(change)
            left.mul_(slope[part, None])
            right.mul_(slope[part, None])
            torch.mm(left, table, out=by_a[part])
            torch.mm(right, table, out=by_b[part])
            by_table.addmm_(left.t(), a[part]).addmm_(right.t(), b[part])
            by_bias += left.sum(0) + right.sum(0)
        return by_a, by_b, by_table, by_bias, None


def _softmaxes(x: Tensor, y: Tensor, table: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """p, q and log p - log q of some rows."""
    log_p, log_q = (torch.addmm(bias, side, table.t()).log_softmax(1) for side in (x, y))
    p, q = log_p.exp(), log_q.exp()
    return p, q, log_p.sub_(log_q)


class VocabularyHead:
    """The tied output layer of a language model: its loss and the penalties between two of its readings.

    >>> model = AWDLSTM(words=50, size=8, hidden=12, layers=2)
    >>> head, tokens = VocabularyHead(model), torch.randint(50, (3, 6))
    >>> head.loss(model(tokens[:, :-1]).outputs, tokens[:, 1:]).shape
    torch.Size([3])

    Args:
        model: whose word vectors and bias are used.
        alpha: weight of the squared activations with dropout (AR), the mean over units.
        beta: weight of the squared change of activations from step to step (TAR), the mean over units.

    Paper: Merity, Keskar and Socher (2018), section 4.5; the mean over the vocabulary of the squared difference of logits
    is what the released codes of fraternal and adversarial dropout charge.
    """

    def __init__(self, model: AWDLSTM, alpha: float = 0.0, beta: float = 0.0) -> None:
        self.model, self.alpha, self.beta = model, alpha, beta

    def split(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """The states with dropout and those without, (B, T, size) each."""
        dropped, raw = outputs.chunk(2, -1)
        return dropped, raw

    def surprise(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Minus the log-probability of every word, (B, T)."""
        states, table = self.split(outputs)[0], self.model.table
        with torch.autocast(states.device.type, enabled=False):
            flat = states.flatten(0, 1).to(table.dtype)
            found = Surprise.apply(flat, table, self.model.bias, targets.flatten())
        return found.view_as(targets)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy and the activation regularisers, the mean over a row's words, (B,)."""
        losses = self.surprise(outputs, targets).mean(1)
        dropped, raw = self.split(outputs)
        if self.alpha:
            losses = losses + self.alpha * per_example(dropped.square())
        if self.beta and raw.shape[1] > 1:
            losses = losses + self.beta * per_example((raw[:, 1:] - raw[:, :-1]).square())
        return losses

    def squared_error(self, clean: Tensor, perturbed: Tensor) -> Tensor:
        """Squared difference of the logits: the mean over the vocabulary and over a row's words, (B,)."""
        table = self.model.table
        with torch.autocast(clean.device.type, enabled=False):
            change = (self.split(perturbed)[0] - self.split(clean)[0]).to(table.dtype)
            moved = change @ (table.t() @ table)
            return (moved * change).sum(-1).mean(1) / len(table)

    def kl(self, clean: Tensor, perturbed: Tensor) -> Tensor:
        """KL(clean || perturbed) of the next word, the mean over a row's words, (B,)."""
        return self.divergence(clean, perturbed, both=False)

    def symmetric_kl(self, clean: Tensor, perturbed: Tensor) -> Tensor:
        """KL both ways, the mean over a row's words, (B,)."""
        return self.divergence(clean, perturbed, both=True)

    def divergence(self, clean: Tensor, perturbed: Tensor, both: bool) -> Tensor:
        """KL one way or both ways."""
        table = self.model.table
        with torch.autocast(clean.device.type, enabled=False):
            a, b = (self.split(side)[0].to(table.dtype) for side in (clean, perturbed))
            found = Divergence.apply(a.flatten(0, 1), b.flatten(0, 1), table, self.model.bias, both)
        return found.view(a.shape[:2]).mean(1)
