"""Perturbations along directions a reader can name: from word to word, or between the attention a sentence pays its words."""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from ..balls import L2, Ball, Linf, masked
from ..sites.site import Slot
from .directions import WordDirections
from .player import Game, InBall, Response, lost, slope, without, working_copy

Reading = Literal["paper", "attached", "per_word", "row_sum"]


@dataclass(frozen=True)
class Interpretable(InBall):
    """Interpretable adversarial training: one gradient, spelled in directions that mean something.

    At attention scores (`sparring.Scores`) the directions of position t are the differences of its score to those of the
    others, `d_t = (a_t - a_k)_k`, of unit length, and `r_t = alpha_t . d_t` (eq. 13-15). Equation 18 gives a matrix of weights
    where equation 19 needs one number per word; `reading` says how to read it, each in closed form, never with a T x T tensor:

    - `"paper"`: alpha in one L2 ball per sentence. This *is* attention AT: the gradient in alpha_t is `g_t d_t` and d_t has
      norm 1, so `r_t = radius * g_t / |g|`.
    - `"attached"`: the same, and the model also learns through the differences. That adds exactly nothing: r_t is the
      projection of a unit vector on itself, whose derivative is zero.
    - `"per_word"`: each alpha_t in a ball of its own: `r_t = radius * sign(g_t)`; takes `Linf(radius)`.
    - `"row_sum"`: the matrix of weights summed over its rows, scaled to the radius: `r_t ~ g_t * sum_k d_tk`.

    Where all scores are equal, or there is one word, no difference exists and nothing is perturbed.

    At word vectors (`sparring.Words`) give `words=WordDirections(...)`: the gradient is projected on directions to other
    words, normalised per word, summed, and scaled to the radius per sentence (Word iAT).

    >>> import sparring as sp
    >>> sp.Interpretable(sp.L2(1.0), reading="row_sum")
    Interpretable(ball=L2(radius=1.0, rows=False), reading='row_sum', words=None)

    Args:
        ball: the radius per sentence (`rows=True`: per query row).
        reading: see above; has no meaning for words.
        words: directions between words; None: differences of attention.

    Reference: Kitada and Iyatomi, "Attention Meets Perturbations", eq. 13-19; Sato et al. 2018 for words.
    """

    ball: Ball
    reading: Reading = "row_sum"
    words: WordDirections | None = None

    def __post_init__(self) -> None:
        if self.reading not in get_args(Reading):
            raise ValueError(f"Interpretable(reading={self.reading!r}): choose one of {', '.join(get_args(Reading))}")
        wanted = Linf if self.words is None and self.reading == "per_word" else L2
        if not isinstance(self.ball, wanted):
            what = "word directions" if self.words is not None else f"reading={self.reading!r}"
            raise ValueError(f"Interpretable: {what} is bounded by {wanted.__name__}(radius), got {self.ball}")

    starts_at_clean = True

    def respond(self, game: Game) -> Response:
        points = [working_copy(slot).requires_grad_() for slot in game.slots]
        gradients = slope(game.payoff(points), points)
        moves = [self._spell(slot, gradient) for slot, gradient in zip(game.slots, gradients, strict=True)]
        if self.words is not None:
            self.words.step += 1
        unperturbed = lost(gradients, game.slots) | lost(moves, game.slots)
        values = [
            without(unperturbed, self.ball.leap(m, s.valid, around=s.value))
            for m, s in zip(moves, game.slots, strict=True)
        ]
        return Response(values, unperturbed, backward_passes=1)

    def _spell(self, slot: Slot, gradient: Tensor) -> Tensor:
        if self.words is not None:
            return self.words.combine(slot, masked(gradient, slot.valid))
        weight = row_sums(slot.value, slot.valid) if self.reading == "row_sum" else differ(slot.value, slot.valid)
        return gradient * weight.to(gradient.dtype)


def differ(scores: Tensor, valid: Tensor | None = None) -> Tensor:
    """True in the rows whose valid scores are not all equal: there every difference vector has a direction.

    >>> differ(torch.tensor([[1.0, 1.0, 9.0], [1.0, 2.0, 9.0]]), torch.tensor([[True, True, False]]))
    tensor([[False],
            [ True]])
    """
    valid = torch.ones_like(scores, dtype=torch.bool) if valid is None else valid.expand_as(scores)
    lowest, highest = (scores.masked_fill(~valid, end) for end in (torch.inf, -torch.inf))
    return highest.amax(-1, keepdim=True) > lowest.amin(-1, keepdim=True)


def row_sums(scores: Tensor, valid: Tensor | None = None) -> Tensor:
    """`sum_k (a_t - a_k) / |d_t|` over the n valid positions; 0 where all are equal.

    With centred scores c the sum is `n c_t` and `|d_t|^2 = n c_t^2 + sum_k c_k^2`.

    >>> row_sums(torch.tensor([[0.0, 0.0, 3.0]]))
    tensor([[-1.0000, -1.0000,  1.4142]])
    """
    scores = scores.double() if scores.dtype == torch.float64 else scores.float()
    counted = torch.ones_like(scores) if valid is None else valid.expand_as(scores).to(scores.dtype)
    count = counted.sum(-1, keepdim=True)
    mean = (scores * counted).sum(-1, keepdim=True) / count.clamp_min(1)
    centred = (scores - mean) * counted
    peak = centred.abs().amax(-1, keepdim=True)
    centred = centred / torch.where(peak > 0, peak, 1.0)  # squares of tiny differences must not vanish
    length = (count * centred.square() + centred.square().sum(-1, keepdim=True)).sqrt()
    sums = count * centred / torch.where(length > 0, length, 1.0)
    return torch.where(differ(scores, valid), sums, 0.0) * counted
