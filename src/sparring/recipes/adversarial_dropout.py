"""Adversarial dropout: the worst mask instead of a random one."""

from dataclasses import replace
from typing import Any, Literal

from torch import Tensor, nn

from ..balls import Flips
from ..objective import Objective
from ..penalties import Penalty, js
from ..players import GreedyFlip, Player
from ..sites import RecurrentWeights, Site
from ..terms import Term, Weight
from .grammar import Loss, recipe
from .random_masks import mask_site, with_keep


@recipe
def adversarial_dropout(
    model: nn.Module,
    loss: Loss,
    at: str | Site = "**",
    *,
    ball: Flips = Flips(0.03),
    steps: int = 1,
    start: Literal["flip", "base"] | Tensor = "flip",
    restarts: int = 1,
    by: Player | None = None,
    keep: float | None = None,
    penalty: Penalty = js,
    weight: Weight = 1.0,
    detach_clean: bool | None = None,
    share_noise: bool = True,
    paper_algorithm: bool = False,
    through_scale: bool = False,
    both_ways: bool = False,
    **options: Any,
) -> Objective:
    """Adversarial dropout (Park et al. 2019; eq. 4-9): keep the network near itself under the worst dropout mask.

    >>> import sparring as sp, torch
    >>> model, last = nn.LSTM(3, 64, batch_first=True), lambda result: result[0][:, -1]
    >>> objective = sp.recipes.adversarial_dropout(model, sp.cross_entropy, ball=sp.Flips(0.05), steps=2, outputs=last)
    >>> objective(torch.randn(2, 5, 3), torch.tensor([0, 3])).backward()
    >>> objective.diagnostics["adversarial_dropout/flips"] <= 3
    True

    Together with virtual adversarial training, on one clean pass: `adversarial_dropout(model, loss, at="lstm") + vat(model, loss,
    at="embedding")`.

    Args:
        model: any network with an RNN or with dropout.
        loss: per-example loss.
        at: glob of RNNs (their recurrent connection), `Mask("drop", keep=1.0)` for a dropout layer such as the one on the last
            hidden state, or `RecurrentWeights()` for the DropConnect mask of a language model.
        ball: delta, the share of units that may be flipped (.03 sequential MNIST, .04 text, .06 language models).
        steps: K, how often the influence map is taken.
        start: "flip", or "base" where other noise differs between the passes (`share_noise=False`).
        restarts: random starts of which the best counts, see `GreedyFlip`.
        by: another player instead: `sp.Bernoulli(keep)` is the random control.
        keep: keep rate of the base mask: 1.0 is its expectation, less samples it. None is 1.0 for RNNs, and for a site what it says
            itself (`RecurrentWeights()` and `Mask()` let their layers draw).
        penalty: D; JS as in the paper, `squared_error` on logits for language models.
        weight: a number, or `ramp_up(1.0, steps)`.
        detach_clean: the clean prediction is a constant target (text, language models) or not (sequential MNIST).
        share_noise: all other noise is the same in both passes.
        paper_algorithm: Algorithm 1 to the letter, see `GreedyFlip`.
        through_scale: differentiate through the masks' normaliser too.
        both_ways: a better search from one start, see `GreedyFlip`.
        options: go to `Objective`.
    """
    if isinstance(at, RecurrentWeights):
        ball = replace(ball, rows=True)  # a budget for every row of the weight matrix
        by = replace(by, ball=replace(by.ball, rows=True)) if isinstance(by, GreedyFlip) else by
    player = by or GreedyFlip(
        ball, steps, start, restarts, paper_algorithm, through_scale=through_scale, both_ways=both_ways
    )
    site = mask_site(at, 1.0 if keep is None else keep)
    site = site if keep is None else with_keep(site, keep)
    term = Term(site, player, penalty, weight, share_noise, detach_clean, name="adversarial_dropout")
    return Objective(model, loss, term, **options)
