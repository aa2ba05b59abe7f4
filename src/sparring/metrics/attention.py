"""Does attention agree with what the model uses? Importance of words by gradients or removal, and its correlation with attention."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from ..nn.attention import masked_softmax
from ..passes.one import Pass
from ..passes.step import logits_of
from ..penalties import full_precision
from ..sites.attention.scores import Scores
from ..sites.site import Slot
from ..sites.words import Words
from .correlation import kendall, pearson
from .removal import without_each_word

Definition = Literal["probability", "loss", "integrated", "leave_one_out"]


@dataclass(frozen=True)
class Explanation:
    """Two views of a batch of sentences: what the model attends to, and what its prediction hangs on.

    Attributes:
        attention: attention weights (B, T), 0 on padding.
        importance: gradient importance of each word (B, T), sums to 1 (or is all 0 where the gradient vanishes).
        valid: False on padding (B, T).
        predicted: predicted classes (B,).
    """

    attention: Tensor
    importance: Tensor
    valid: Tensor
    predicted: Tensor

    @property
    def pearson(self) -> Tensor:
        """(B,) correlation of the two within each sentence; NaN where one of them is constant."""
        return pearson(self.attention, self.importance, self.valid)

    @property
    def kendall(self) -> Tensor:
        """(B,) rank correlation (tau-b) within each sentence; NaN where one of them is constant."""
        return kendall(self.attention, self.importance, self.valid)


@dataclass(frozen=True)
class Agreement:
    """Means over a data set of the per-sentence correlations; sentences without one (constant weights) are left out.

    Attributes:
        pearson: mean Pearson correlation.
        kendall: mean Kendall tau-b.
        sentences: how many sentences were seen.
        undefined: how many of them have no correlation (one word, or constant weights).
    """

    pearson: float
    kendall: float
    sentences: int
    undefined: int


def explain(
    model: nn.Module,
    inputs: Any,
    at: str | Words = "embedding",
    attention: str | Scores = "**",
    definition: Definition = "probability",
    outputs: Callable[[Any], Tensor] | None = None,
    query: int | None = 0,
    steps: int = 50,
) -> Explanation:
    """Attention and gradient importance of every word of a batch. Put the model in evaluation mode first.

    The importance of word t is `|sum_d g_td e_td|`, scaled to sum to 1 over the sentence, with e the word vectors and g

    - `"probability"`: the gradient of the predicted class's probability, attention weights held fixed (Jain and Wallace);
    - `"loss"`: the gradient of the loss at the predicted class, through the attention too (AllenNLP Interpret);
    - `"integrated"`: the mean gradient of the probability on the way from zero vectors (integrated gradients; needs `captum`).

    With `"leave_one_out"` it is no gradient: how far the predicted distribution moves (total variation) when the word is taken out
    of the sentence, scaled likewise. One pass for each position.

    >>> from sparring.lab.models.birnn import SingleSequence
    >>> seen = explain(SingleSequence(20, 6, 8), torch.tensor([[3, 7, 2], [5, 9, 0]]))
    >>> seen.importance.shape, seen.importance[1, 2].item()
    (torch.Size([2, 3]), 0.0)

    Args:
        model: a classifier whose words come from an `nn.Embedding`.
        inputs: a batch as the model takes it.
        at: the embedding layer.
        attention: the attention layers; several are averaged.
        definition: which gradient, see above.
        outputs: from what the model returns to its logits.
        query: of multi-head attention, whose weights count: of this query position ([CLS] is 0), or of all (None: their mean).
        steps: of the integral.
    """
    if definition not in get_args(Definition):
        raise ValueError(f"explain(definition={definition!r}): choose one of {', '.join(get_args(Definition))}")
    words = Words(at) if isinstance(at, str) else at
    scores = Scores(attention) if isinstance(attention, str) else attention
    extract = outputs or logits_of
    nudges: list[Tensor] = []

    def nudge(slot: Slot) -> Tensor:
        nudges.append(torch.zeros_like(slot.value, requires_grad=True))
        return nudges[-1]

    def hold(slot: Slot) -> Tensor:
        return slot.value.detach() - slot.value  # added to the scores: their value, without their gradient

    with torch.enable_grad():
        one = Pass(model, (words, scores), {words: nudge, scores: hold if definition == "probability" else {}})
        logits = full_precision(extract(one.run(inputs)))
        if logits.dim() != 2 or logits.shape[-1] < 2:
            raise ValueError(f"explain needs logits of at least two classes, (B, C), got shape {tuple(logits.shape)}")
        predicted = logits.argmax(-1)
        log_p = logits.log_softmax(-1).gather(-1, predicted[:, None]).squeeze(-1)
        weights = _weights(one.slots[scores], query)
        index = _same_words(one.slots[words], weights)
        chosen = one.slots[words][index]
        if definition == "leave_one_out":
            raw = without_each_word(model, inputs, words, chosen, extract, logits.detach())
            return Explanation(weights, _shares(raw), _valid(chosen, weights), predicted)
        if definition == "integrated":
            gradient = _integrated(model, inputs, words, chosen, extract, predicted, steps)
        else:
            payoff = log_p.exp() if definition == "probability" else -log_p
            (gradient,) = torch.autograd.grad(payoff.sum(), nudges[index])
    valid = _valid(chosen, weights)
    raw = (gradient * chosen.value.detach()).sum(-1).abs().masked_fill(~valid, 0.0)
    return Explanation(weights, _shares(raw), valid, predicted)


def agreement(model: nn.Module, batches: Iterable[Any], **options: Any) -> Agreement:
    """How well attention agrees with gradient importance over a data set (the "Corr." columns of the paper's Table 2).

    >>> from sparring.lab.models.birnn import SingleSequence
    >>> agreement(SingleSequence(20, 6, 8), [torch.tensor([[3, 7, 2], [5, 0, 0]])]).undefined
    1

    Args:
        model: as in `explain`.
        batches: inputs of the model, batch by batch.
        options: the other arguments of `explain`.
    """
    linear, ranks = [], []
    for inputs in batches:
        seen = explain(model, inputs, **options)
        linear.append(seen.pearson)
        ranks.append(seen.kendall)
    if not linear:
        raise ValueError("agreement: there is no batch to look at")
    pearsons, kendalls = torch.cat(linear), torch.cat(ranks)
    return Agreement(float(pearsons.nanmean()), float(kendalls.nanmean()), len(pearsons), int(pearsons.isnan().sum()))


def _weights(slots: list[Slot], query: int | None) -> Tensor:
    """One weight per word (B, T) of the attention layers: the mean over layers and heads of the chosen query's row."""
    found = []
    for slot in slots:
        weights = masked_softmax(full_precision(slot.value.detach()), slot.valid)
        if weights.dim() == 4:  # (B, heads, queries, keys)
            rows = weights.mean(1)
            if query is not None:
                weights = rows[:, query]
            else:
                asks = rows.sum(-1, keepdim=True) > 0
                weights = rows.sum(1) / asks.sum(1).clamp_min(1)
        found.append(weights)
    if len({w.shape for w in found}) > 1:
        names = ", ".join(f"{s.name} {tuple(s.value.shape)}" for s in slots)
        raise ValueError(
            f"explain: the attention layers look at sequences of different length ({names}); name one of them"
        )
    return torch.stack(found).mean(0)


def _same_words(slots: list[Slot], weights: Tensor) -> int:
    """Which lookup has the words that the attention weighs: the last one of the same length."""
    for index in reversed(range(len(slots))):
        if slots[index].value.shape[:-1] == weights.shape:
            return index
    seen = ", ".join(f"{slot.name} {tuple(slot.value.shape)}" for slot in slots)
    raise ValueError(f"explain: attention weighs {tuple(weights.shape)} words, but the embedding looks up {seen}")


def _valid(chosen: Slot, weights: Tensor) -> Tensor:
    everywhere = torch.ones(weights.shape, dtype=torch.bool, device=weights.device)
    return everywhere if chosen.valid is None else chosen.valid.squeeze(-1)


def _shares(raw: Tensor) -> Tensor:
    total = raw.sum(-1, keepdim=True)
    return raw / torch.where(total > 0, total, 1.0)


def _integrated(
    model: nn.Module,
    inputs: Any,
    words: Words,
    chosen: Slot,
    extract: Callable[[Any], Tensor],
    predicted: Tensor,
    steps: int,
) -> Tensor:
    """Mean gradient of the predicted probability between zero word vectors and the real ones."""
    try:
        from captum.attr import IntegratedGradients
    except ImportError as error:
        raise ImportError("integrated gradients need captum: pip install 'sparring[explain]'") from error
    leaves, form = tree_flatten(inputs)

    def probability(vectors: Tensor, *again: Any) -> Tensor:
        def place(slot: Slot) -> Tensor:
            return vectors - slot.value.detach() if slot.name == chosen.name else torch.zeros_like(slot.value)

        one = Pass(model, (words,), {words: place})
        return full_precision(extract(one.run(tree_unflatten(list(again), form)))).softmax(-1)

    return IntegratedGradients(probability, multiply_by_inputs=False).attribute(
        chosen.value.detach(), target=predicted, additional_forward_args=tuple(leaves), n_steps=steps
    )
