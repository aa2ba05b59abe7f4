"""The same answer with the opposite sign."""

from dataclasses import dataclass

from ..balls import Ball
from .player import Game, Player, Response


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

    def respond(self, game: Game) -> Response:
        answer = self.player.respond(game)
        return Response([-v for v in answer.values], answer.unperturbed, answer.notes, answer.backward_passes)
