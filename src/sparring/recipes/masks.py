"""Methods that perturb dropout masks: at random, twice at random, or adversarially."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from torch import Tensor, nn

from ..balls.flips import Flips
from ..objective import Objective, Playable, Term, Weight
from ..penalties import Penalty, js
from ..players import Bernoulli, GreedyFlip
from ..sites import Mask, Recurrent, RecurrentWeights, Site

Loss = Callable[..., Tensor]
MaskSite = Recurrent | RecurrentWeights | Mask


def ramp_up(peak: float, steps: int) -> Callable[[int], float]:
    """A weight that grows as `peak * exp(-5 (1 - t/T)^2)` over T training steps, then stays.

    >>> [round(ramp_up(1.0, 10)(t), 3) for t in (0, 5, 10, 99)]
    [0.007, 0.287, 1.0, 1.0]
    """
    if steps < 1:
        raise ValueError(f"ramp_up(steps={steps}): at least one step; without a ramp give the weight itself")
    return partial(_ramp, peak, steps)  # not a lambda: objectives can be pickled


def _ramp(peak: float, steps: int, step: int) -> float:
    return peak * math.exp(-5.0 * max(0.0, 1.0 - step / steps) ** 2)


def mask_site(at: str | Site, keep: float | None = 1.0) -> Site:
    """A glob means the recurrent connection of those RNNs, with this keep rate in the clean pass; a site is itself."""
    return Recurrent(at, keep=keep) if isinstance(at, str) else at


def variational_dropout(
    model: nn.Module, loss: Loss, at: str | Site = "**", keep: float | None = None, weight: Weight = 1.0, **options: Any
) -> Objective:
    """Variational dropout (Gal and Ghahramani 2016): train on one random mask per example, the same at every step.

    >>> import sparring as sp, torch
    >>> model = nn.LSTM(3, 4, batch_first=True)
    >>> objective = variational_dropout(model, sp.cross_entropy, keep=0.9, outputs=lambda result: result[0][:, -1])
    >>> objective(torch.randn(2, 5, 3), torch.tensor([0, 3])).backward()

    Args:
        model: has an RNN, ours or torch's.
        loss: per-example loss.
        at: glob of RNNs, or any mask site.
        keep: keep rate; kept units are divided by it. None is that of the dropout layers at the site, .9 for an RNN.
        weight: of the loss under dropout.
        options: passed to `Objective`.
    """
    term = Term(mask_site(at), _random(model, at, keep), weight=weight, name="VD")
    return Objective(model, loss, term, clean_weight=0.0, **options)


def expectation_linear(
    model: nn.Module, loss: Loss, at: str | Site = "**", keep: float | None = None, penalty: Penalty = js, weight: Weight = 1.0,
    train_on: Literal["random", "ones"] = "random", detach_clean: bool = False, share_noise: bool = True,
    terms: Sequence[Playable] = (), **options: Any,
) -> Objective:  # fmt: skip
    """Expectation-linear dropout (Ma et al. 2017; eq. 2): keep the network under a random mask near the full network.

    Args:
        at: glob of RNNs, or any mask site; it keeps everything in the clean pass unless it says otherwise itself.
        keep: keep rate of the random mask. None is that of the dropout layers at the site, .9 for an RNN.
        train_on: the supervised loss is that of the network under the random mask (as in Ma et al.) or under ones.
        penalty: distance between the two outputs; JS as in Park et al., `squared_error` for logits.
        detach_clean: the full network is a constant target.
        share_noise: all other noise is the same in both passes.
        terms: further terms that share the clean pass.
    """
    if train_on not in ("random", "ones"):
        raise ValueError(f'expectation_linear(train_on={train_on!r}): choose "random" or "ones"')
    supervised = 1.0 if train_on == "random" else 0.0
    site = _with_keep(mask_site(at), 1.0)
    term = Term(site, _random(model, at, keep), penalty, weight, share_noise, detach_clean, supervised, "EL")
    return Objective(model, loss, term, *terms, clean_weight=1.0 - supervised, **options)


def fraternal_dropout(
    model: nn.Module, loss: Loss, at: str | Site = "**", keep: float | None = None, penalty: Penalty = js, weight: Weight = 1.0,
    share_noise: bool = False, terms: Sequence[Playable] = (), **options: Any,
) -> Objective:  # fmt: skip
    """Fraternal dropout (Zolna et al. 2018; eq. 3): `(CE1 + CE2) / 2 + weight * D(p1, p2)` under two random masks.

    Args:
        at: glob of RNNs, or any mask site.
        keep: keep rate of both masks. None is that of the dropout layers at the site, .9 for an RNN.
        share_noise: whether dropout elsewhere is the same in both passes; the published method draws it anew.
        terms: further terms that share the first pass.
    """
    player = _random(model, at, keep)
    site = mask_site(at, None)
    if keep is not None or _own_rate(model, at) is None:  # else the layers draw the first mask by themselves
        site = _with_keep(site, player.keep)
    term = Term(site, player, penalty, weight, share_noise, supervised=0.5, name="FD")
    return Objective(model, loss, term, *terms, clean_weight=0.5, **options)


def adversarial_dropout(
    model: nn.Module, loss: Loss, at: str | Site = "**", fraction: float = 0.03, rounds: int = 1,
    start: Literal["flip", "base"] | Tensor = "flip", penalty: Penalty = js, weight: Weight = 1.0, detach_clean: bool = False,
    share_noise: bool = True, keep: float | None = None, restarts: int = 1, paper_algorithm: bool = False, through_scale: bool = False,
    terms: Sequence[Playable] = (), **options: Any,
) -> Objective:  # fmt: skip
    """Adversarial dropout (Park et al. 2019; eq. 4-9): keep the network near itself under the worst dropout mask.

    >>> import sparring as sp, torch
    >>> model, last = nn.LSTM(3, 64, batch_first=True), lambda result: result[0][:, -1]
    >>> objective = adversarial_dropout(model, sp.cross_entropy, fraction=0.05, rounds=2, outputs=last)
    >>> objective(torch.randn(2, 5, 3), torch.tensor([0, 3])).backward()
    >>> objective.diagnostics["AdD/flips"] <= 3
    True

    Together with virtual adversarial training, on one clean pass: `terms=vat(model, loss, at="embedding").terms`.

    Args:
        model: any network with an RNN or with dropout.
        loss: per-example loss.
        at: glob of RNNs (their recurrent connection), `Mask("drop", keep=1.0)` for a dropout layer such as the one on the last
            hidden state, or `RecurrentWeights()` for the DropConnect mask of a language model.
        fraction: delta, share of units that may be flipped (.03 sequential MNIST, .04 text, .06 language models).
        rounds: K.
        start: "flip", or "base" where other noise differs between the passes (`share_noise=False`).
        penalty: D; JS as in the paper, `squared_error` on logits for language models.
        weight: a number, or `ramp_up(1.0, steps)`.
        detach_clean: the clean prediction is a constant target (text, language models) or not (sequential MNIST).
        share_noise: all other noise is the same in both passes.
        keep: keep rate of the base mask: 1.0 is its expectation, less samples it. None is 1.0 for RNNs, and for a site what it says
            itself (`RecurrentWeights()` and `Mask()` let their layers draw).
        restarts: random starts of which the best counts, see `GreedyFlip`.
        paper_algorithm: Algorithm 1 to the letter, see `GreedyFlip`.
        through_scale: differentiate through the masks' normaliser too.
        terms: further terms that share the clean pass.
        options: passed to `Objective`.
    """
    player = GreedyFlip(
        Flips(fraction, rows=isinstance(at, RecurrentWeights)),
        rounds,
        start,
        restarts,
        paper_algorithm,
        through_scale=through_scale,
    )
    site = mask_site(at, 1.0 if keep is None else keep)
    site = site if keep is None else _with_keep(site, keep)
    term = Term(site, player, penalty, weight, share_noise, detach_clean, name="AdD")
    return Objective(model, loss, term, *terms, **options)


def _random(model: nn.Module, at: str | Site, keep: float | None) -> Bernoulli:
    """Random masks at the rate that is given, or that the site names, or at which its layers draw, or else .9."""
    if keep is None:
        named = getattr(at, "keep", None)
        keep = _own_rate(model, at) if named in (None, 1) else named
    return Bernoulli(0.9 if keep is None else keep, shared=isinstance(at, RecurrentWeights))


def _own_rate(model: nn.Module, at: str | Site) -> float | None:
    """The keep rate at which the layers of a site draw by themselves; None where they do not."""
    if not isinstance(at, Mask | RecurrentWeights):
        return None
    drop = "p" if isinstance(at, Mask) else "drop"
    rates = {1 - float(getattr(layer, drop)) for layer in at.modules(model).values() if hasattr(layer, drop)}
    if len(rates) > 1:
        raise ValueError(
            f"{at} stands for dropout with keep rates {', '.join(f'{rate:g}' for rate in sorted(rates))}: give keep="
        )
    return rates.pop() if rates else None


def _with_keep(site: Site, keep: float) -> Site:
    """The site with that keep rate in the clean pass, where it does not name one."""
    named = not isinstance(site, MaskSite) or site.keep is not None
    return site if named else replace(site, keep=keep)  # type: ignore[type-var]
