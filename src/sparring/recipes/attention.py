"""Training against perturbed attention scores and along word directions (Kitada and Iyatomi; Sato et al. 2018)."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from ..balls import L2, Linf
from ..objective import Objective, Term, Weight
from ..players import FastGradient, Interpretable, Noise, WordDirections
from ..players.interpretable import Reading
from ..sites import Scores, Site, Words

Loss = Callable[..., Tensor]


def _scores(at: str | Site) -> Site:
    return Scores(at) if isinstance(at, str) else at


def attention_noise(
    model: nn.Module, loss: Loss, at: str | Site = "**", epsilon: float = 5.0, rows: bool = False, weight: Weight = 1.0,
    **options: Any,
) -> Objective:  # fmt: skip
    """Attention RP: clean loss plus the loss under random attention scores, the control of attention AT and iAT.

    The paper does not say how its noise is drawn; here it is uniform on the sphere of radius epsilon over the valid positions.

    >>> import sparring as sp, torch
    >>> from sparring.lab.models.birnn import SingleSequence
    >>> objective = attention_noise(SingleSequence(20, 6, 8), sp.cross_entropy, at="attention")
    >>> objective(torch.tensor([[3, 7, 2], [5, 9, 0]]), torch.tensor([0, 1])).backward()

    Args:
        model: any model with attention that `Scores` reaches.
        loss: per-example loss.
        at: glob of attention layers, or a `Scores` site (with a choice of layers and heads).
        epsilon: norm of the perturbation, per sentence and attention layer.
        rows: a ball for each query row instead of one per example (self-attention).
        weight: lambda of eq. 20.
        options: passed to `Objective`.
    """
    return Objective(model, loss, Term(_scores(at), Noise(L2(epsilon, rows)), weight=weight), **options)


def attention_at(
    model: nn.Module, loss: Loss, at: str | Site = "**", epsilon: float = 5.0, rows: bool = False, weight: Weight = 1.0,
    **options: Any,
) -> Objective:  # fmt: skip
    """Attention AT (eq. 10-12, 20): clean loss plus the loss where the attention scores hurt most.

    >>> import sparring as sp, torch
    >>> from sparring.lab.models.birnn import SingleSequence
    >>> objective = attention_at(SingleSequence(20, 6, 8), sp.cross_entropy, at="attention", epsilon=5.0)
    >>> objective(torch.tensor([[3, 7, 2], [5, 9, 0]]), torch.tensor([0, 1])).backward()
    >>> round(objective.diagnostics["FastGradient@attention/norm"], 4)
    5.0

    Args:
        at: glob of attention layers, or a `Scores` site (with a choice of layers and heads).
        epsilon: norm of the perturbation, per sentence and attention layer.
        rows: a ball for each query row instead of one per example (self-attention).
        weight: lambda of eq. 20.
        options: passed to `Objective`.
    """
    return Objective(model, loss, Term(_scores(at), FastGradient(L2(epsilon, rows)), weight=weight), **options)


def attention_iat(
    model: nn.Module, loss: Loss, at: str | Site = "**", epsilon: float = 5.0, reading: Reading = "row_sum",
    rows: bool = False, weight: Weight = 1.0, **options: Any,
) -> Objective:  # fmt: skip
    """Attention iAT (eq. 13-20): as attention AT, along differences of attention within the sentence.

    >>> import sparring as sp, torch
    >>> from sparring.lab.models.birnn import SingleSequence
    >>> objective = attention_iat(SingleSequence(20, 6, 8), sp.cross_entropy, at="attention")
    >>> objective(torch.tensor([[3, 7, 2], [5, 9, 0]]), torch.tensor([0, 1])).backward()

    Args:
        at: glob of attention layers, or a `Scores` site (with a choice of layers and heads).
        epsilon: size of the perturbation: its norm per sentence, or with `reading="per_word"` its size at every word.
        reading: how to read eq. 18, which does not type-check; see `Interpretable`. "paper" and "attached" are attention AT.
        rows: a ball for each query row instead of one per example (self-attention).
        weight: lambda of eq. 20.
        options: passed to `Objective`.
    """
    ball = Linf(epsilon, rows) if reading == "per_word" else L2(epsilon, rows)
    return Objective(model, loss, Term(_scores(at), Interpretable(ball, reading), weight=weight), **options)


def word_iat(
    model: nn.Module, loss: Loss, at: str | Words = "embedding", epsilon: float = 15.0, neighbours: int | None = 10,
    refresh: int = 100, weight: Weight = 1.0, **options: Any,
) -> Objective:  # fmt: skip
    """Word iAT (Sato et al. 2018): clean loss plus the loss with each word moved towards other words of the vocabulary.

    Word AT is `adversarial_training(model, loss, at=Words("embedding"), ball=L2(5.0))`.

    >>> import sparring as sp, torch
    >>> from sparring.lab.models.birnn import SingleSequence
    >>> objective = word_iat(SingleSequence(20, 6, 8), sp.cross_entropy, neighbours=3)
    >>> objective(torch.tensor([[3, 7, 2], [5, 9, 0]]), torch.tensor([0, 1])).backward()

    Args:
        at: glob of one embedding layer, or a `Words` site.
        epsilon: norm of the perturbation of a sentence.
        neighbours: directions to that many nearest words by cosine; None: to the whole vocabulary.
        refresh: steps after which a word's neighbours are looked for again.
        weight: of the perturbed loss.
        options: passed to `Objective`.
    """
    site = Words(at) if isinstance(at, str) else at
    layers = site.modules(model)
    if len(layers) > 1:
        raise ValueError(f"word_iat(at={at!r}): word directions need one vocabulary, found {', '.join(layers)}")
    (embedding,) = layers.values()
    assert isinstance(embedding, nn.Embedding)
    player = Interpretable(L2(epsilon), words=WordDirections(embedding, site, neighbours, refresh))
    return Objective(model, loss, Term(site, player, weight=weight), **options)
