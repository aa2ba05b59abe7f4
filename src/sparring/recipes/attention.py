"""Training against perturbed attention scores (Kitada and Iyatomi)."""

from typing import Any, Literal

from torch import nn

from ..balls import L2, Ball, Linf
from ..objective import Objective
from ..players import FastGradient, Interpretable, Noise, Player
from ..players.interpretable import Reading
from ..players.reversed import Reversed
from ..sites import Scores, Site
from ..terms import Term, Weight
from .grammar import Loss, recipe

Direction = Literal["paper", "released"]


def _objective(
    name: str,
    model: nn.Module,
    loss: Loss,
    at: str | Site,
    player: Player,
    weight: Weight,
    direction: str,
    options: Any,
) -> Objective:
    if direction not in ("paper", "released"):
        raise ValueError(f'{name}(direction={direction!r}): choose "paper" or "released"')
    site = Scores(at) if isinstance(at, str) else at
    by = Reversed(player) if direction == "released" else player
    return Objective(model, loss, Term(site, by, weight=weight, name=name), **options)


@recipe
def attention_noise(
    model: nn.Module,
    loss: Loss,
    at: str | Site = "**",
    *,
    ball: Ball = L2(5.0),
    weight: Weight = 1.0,
    **options: Any,
) -> Objective:
    """Attention RP: clean loss plus the loss under random attention scores, the control of attention AT and iAT.

    The paper does not say how its noise is drawn; here it is uniform on the sphere over the valid positions.

    >>> import sparring as sp, torch
    >>> from sparring.lab.models.birnn import SingleSequence
    >>> objective = sp.recipes.attention_noise(SingleSequence(20, 6, 8), sp.cross_entropy, at="attention")
    >>> objective(torch.tensor([[3, 7, 2], [5, 9, 0]]), torch.tensor([0, 1])).backward()

    Args:
        model: any model with attention that `Scores` reaches.
        loss: per-example loss.
        at: glob of attention layers, or a `Scores` site (with a choice of layers and heads).
        ball: size of the noise, per sentence and attention layer; `rows=True` for each query (self-attention).
        weight: lambda of eq. 20.
        options: go to `Objective`.
    """
    return _objective("attention_noise", model, loss, at, Noise(ball), weight, "paper", options)


@recipe
def attention_at(
    model: nn.Module,
    loss: Loss,
    at: str | Site = "**",
    *,
    ball: Ball = L2(5.0),
    by: Player | None = None,
    direction: Direction = "paper",
    weight: Weight = 1.0,
    **options: Any,
) -> Objective:
    """Attention AT (eq. 10-12, 20): clean loss plus the loss where the attention scores hurt most.

    >>> import sparring as sp, torch
    >>> from sparring.lab.models.birnn import SingleSequence
    >>> objective = sp.recipes.attention_at(SingleSequence(20, 6, 8), sp.cross_entropy, at="attention")
    >>> objective(torch.tensor([[3, 7, 2], [5, 9, 0]]), torch.tensor([0, 1])).backward()
    >>> round(objective.diagnostics["attention_at/norm"], 4)
    5.0

    Args:
        model: any model with attention that `Scores` reaches.
        loss: per-example loss.
        at: glob of attention layers, or a `Scores` site (with a choice of layers and heads).
        ball: epsilon, per sentence and attention layer; `rows=True` for each query (self-attention).
        by: another player instead: `sp.Noise(ball)` is the random control.
        direction: "paper" raises the loss; "released" is the sign of the authors' code, which lowers it.
        weight: lambda of eq. 20.
        options: go to `Objective`.
    """
    return _objective("attention_at", model, loss, at, by or FastGradient(ball), weight, direction, options)


@recipe
def attention_iat(
    model: nn.Module,
    loss: Loss,
    at: str | Site = "**",
    *,
    ball: Ball = L2(5.0),
    reading: Reading = "row_sum",
    by: Player | None = None,
    direction: Direction = "paper",
    weight: Weight = 1.0,
    **options: Any,
) -> Objective:
    """Attention iAT (eq. 13-20): as attention AT, along differences of attention within the sentence.

    >>> import sparring as sp, torch
    >>> from sparring.lab.models.birnn import SingleSequence
    >>> objective = sp.recipes.attention_iat(SingleSequence(20, 6, 8), sp.cross_entropy, at="attention")
    >>> objective(torch.tensor([[3, 7, 2], [5, 9, 0]]), torch.tensor([0, 1])).backward()

    Args:
        model: any model with attention that `Scores` reaches.
        loss: per-example loss.
        at: glob of attention layers, or a `Scores` site (with a choice of layers and heads).
        ball: its norm per sentence; with `reading="per_word"` the same radius bounds every word on its own.
        reading: how to read eq. 18, which does not type-check; see `Interpretable`. "paper" and "attached" are attention AT.
        by: another player instead: `sp.Noise(ball)` is the random control.
        direction: "paper" raises the loss; "released" is the sign of the authors' code, which lowers it.
        weight: lambda of eq. 20.
        options: go to `Objective`.
    """
    if by is None:
        if reading == "per_word" and isinstance(ball, L2):
            ball = Linf(ball.radius, ball.rows)
        by = Interpretable(ball, reading)
    return _objective("attention_iat", model, loss, at, by, weight, direction, options)
