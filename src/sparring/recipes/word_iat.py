"""Interpretable perturbations of word vectors."""

from typing import Any

from torch import nn

from ..balls import L2, Ball
from ..objective import Objective
from ..players import Interpretable, Player, WordDirections
from ..sites import Words
from ..terms import Term, Weight
from .grammar import Loss, recipe


@recipe
def word_iat(
    model: nn.Module,
    loss: Loss,
    at: str | Words = "embedding",
    *,
    ball: Ball = L2(15.0),
    neighbours: int | None = 10,
    refresh: int = 100,
    by: Player | None = None,
    weight: Weight = 1.0,
    **options: Any,
) -> Objective:
    """Word iAT (Sato et al. 2018): clean loss plus the loss with each word moved towards other words of the vocabulary.

    Word AT is `adversarial_training(model, loss, at=sp.Words("embedding"), ball=sp.L2(5.0))`.

    >>> import sparring as sp, torch
    >>> from sparring.lab.models.birnn import SingleSequence
    >>> objective = sp.recipes.word_iat(SingleSequence(20, 6, 8), sp.cross_entropy, neighbours=3)
    >>> objective(torch.tensor([[3, 7, 2], [5, 9, 0]]), torch.tensor([0, 1])).backward()

    Args:
        model: has one embedding layer under the name.
        loss: per-example loss.
        at: glob of one embedding layer, or a `Words` site.
        ball: norm of the perturbation of a sentence.
        neighbours: directions to that many nearest words by cosine; None: to the whole vocabulary.
        refresh: steps after which a word's neighbours are looked for again.
        by: another player instead: `sp.Noise(ball)` is the random control.
        weight: of the perturbed loss.
        options: go to `Objective`.
    """
    site = Words(at) if isinstance(at, str) else at
    layers = site.modules(model)
    if len(layers) > 1:
        raise ValueError(f"word_iat(at={at!r}): word directions need one vocabulary, found {', '.join(layers)}")
    (embedding,) = layers.values()
    assert isinstance(embedding, nn.Embedding)
    player = by or Interpretable(ball, words=WordDirections(embedding, neighbours, refresh))
    return Objective(model, loss, Term(site, player, weight=weight, name="word_iat"), **options)
