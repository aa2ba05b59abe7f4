"""The same answer with the opposite sign."""

from dataclasses import dataclass, replace

from ..balls import Ball
from .player import Game, Player, Response, Unroll


@dataclass(frozen=True)
class Reversed(Player):
    """Whatever another player answers, negated: the direction in which the payoff falls.

    The released code of attention AT and iAT does this (its gradient is negated); the sign changes what the method does to
    the agreement of attention and gradients.

    >>> import sparring as sp
    >>> Reversed(sp.FastGradient(sp.L2(1.0))).bound
    L2(radius=1.0, rows=False)

    Args:
        player: at additive sites.
    """

    player: Player

    @property
    def bound(self) -> Ball | None:
        return self.player.bound

    @property
    def starts_at_clean(self) -> bool:  # type: ignore[override]
        return self.player.starts_at_clean

    @property
    def unroll(self) -> Unroll:  # type: ignore[override]
        return self.player.unroll

    def respond(self, game: Game) -> Response:
        if (
            game.precise_clean is not None
        ):  # the pull is then taken anew at the player's own answer, which is not played
            raise ValueError(
                'Reversed(...): unroll="finite_difference" under autocast is not for reversed players; use unroll="autograd"'
            )
        answer, ball = self.player.respond(game), self.bound
        values = [-v for v in answer.values]
        if ball is not None:  # the other side of a box may be nearer
            values = [ball.in_box(v, s.valid, around=s.value) for v, s in zip(values, game.slots, strict=True)]
        return replace(answer, values=values)
