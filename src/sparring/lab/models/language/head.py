"""Losses and penalties over a whole vocabulary that never hold the logits of a whole window.

A window of 70 x 20 words over 10,000 words is 14 million logits, and a penalty between two passes would hold two such
tensors and their difference. Here the cross-entropy goes through the output layer a few rows at a time, forwards and
backwards, and the squared distance of the logits needs no logits at all:

    sum_v (w_v . a - w_v . b)^2 = (a - b)^T (W^T W) (a - b)

with the same value and the same gradients, for the price of one small matrix a step.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ....penalties import kl, per_example, symmetric_kl
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
        by_h, by_table, by_bias = torch.empty_like(h), None, None
        if ctx.needs_input_grad[1]:
            by_table, by_bias = torch.zeros_like(table), torch.zeros_like(bias)
        for start in range(0, len(h), ROWS):
            part = slice(start, start + ROWS)
            q = torch.addmm(bias, h[part], table.t()).sub_(normaliser[part, None]).exp_()
            q[torch.arange(len(q), device=q.device), targets[part]] -= 1
            q.mul_(slope[part, None])
            torch.mm(q, table, out=by_h[part])
            if by_table is not None and by_bias is not None:
                by_table.addmm_(q.t(), h[part])
                by_bias += q.sum(0)
        return by_h, by_table, by_bias, None


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
        return self.divergence(kl, clean, perturbed)

    def symmetric_kl(self, clean: Tensor, perturbed: Tensor) -> Tensor:
        """KL both ways, the mean over a row's words, (B,)."""
        return self.divergence(symmetric_kl, clean, perturbed)

    def divergence(self, penalty: Callable[[Tensor, Tensor], Tensor], clean: Tensor, perturbed: Tensor) -> Tensor:
        """Any penalty between two sets of logits, a few rows at a time; they are computed again for the gradient."""
        sides = [self.split(side)[0] for side in (clean, perturbed)]
        shape = sides[0].shape[:2]
        rows = zip(*(side.flatten(0, 1).split(ROWS) for side in sides), strict=True)

        def piece(a: Tensor, b: Tensor, table: Tensor, bias: Tensor) -> Tensor:
            return penalty(F.linear(a, table, bias), F.linear(b, table, bias))

        weights = self.model.table, self.model.bias
        found = [checkpoint(piece, a, b, *weights, use_reentrant=False, preserve_rng_state=False) for a, b in rows]
        return torch.cat(found).view(shape).mean(1)
