"""Methods that drop units at random: variational, expectation-linear and fraternal dropout."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from torch import nn

from ..objective import Objective
from ..penalties import Penalty, js
from ..players import Bernoulli
from ..sites import Mask, Recurrent, RecurrentWeights, Site
from ..terms import Term, Weight
from .grammar import Loss, recipe

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


@recipe
def variational_dropout(
    model: nn.Module,
    loss: Loss,
    at: str | Site = "**",
    *,
    keep: float | None = None,
    weight: Weight = 1.0,
    **options: Any,
) -> Objective:
    """Variational dropout (Gal and Ghahramani 2016): train on one random mask per example, the same at every step.

    >>> import sparring as sp, torch
    >>> model = nn.LSTM(3, 4, batch_first=True)
    >>> last = lambda result: result[0][:, -1]
    >>> objective = sp.recipes.variational_dropout(model, sp.cross_entropy, keep=0.9, outputs=last)
    >>> objective(torch.randn(2, 5, 3), torch.tensor([0, 3])).backward()

    Args:
        model: has an RNN, ours or torch's.
        loss: per-example loss; under the mask it replaces the clean one.
        at: glob of RNNs, or any mask site.
        keep: keep rate; kept units are divided by it. None is that of the dropout layers at the site, .9 for an RNN.
        weight: of the loss under dropout.
        options: go to `Objective`.
    """
    term = Term(mask_site(at), random_mask(model, at, keep), weight=weight, replaces=1.0, name="variational_dropout")
    return Objective(model, loss, term, **options)


@recipe
def expectation_linear(
    model: nn.Module,
    loss: Loss,
    at: str | Site = "**",
    *,
    keep: float | None = None,
    train_on: Literal["random", "ones"] = "random",
    penalty: Penalty = js,
    weight: Weight = 1.0,
    detach_clean: bool | None = None,
    share_noise: bool = True,
    **options: Any,
) -> Objective:
    """Expectation-linear dropout (Ma et al. 2017; eq. 2): keep the network under a random mask near the full network.

    >>> import sparring as sp, torch
    >>> model, last = nn.LSTM(3, 4, batch_first=True), lambda result: result[0][:, -1]
    >>> objective = sp.recipes.expectation_linear(model, sp.cross_entropy, outputs=last)
    >>> objective(torch.randn(2, 5, 3), torch.tensor([0, 3])).backward()

    Args:
        model: has an RNN or dropout layers.
        loss: per-example loss.
        at: glob of RNNs, or any mask site; it keeps everything in the clean pass unless it says otherwise itself.
        keep: keep rate of the random mask. None is that of the dropout layers at the site, .9 for an RNN.
        train_on: the supervised loss is that of the network under the random mask (as in Ma et al.) or under ones.
        penalty: distance between the two outputs; JS as in Park et al., `squared_error` for logits.
        weight: of the penalty.
        detach_clean: the full network is a constant target; None: where there are no labels.
        share_noise: all other noise is the same in both passes.
        options: go to `Objective`.
    """
    if train_on not in ("random", "ones"):
        raise ValueError(f'expectation_linear(train_on={train_on!r}): choose "random" or "ones"')
    supervised = 1.0 if train_on == "random" else 0.0
    term = Term(
        with_keep(mask_site(at), 1.0),
        random_mask(model, at, keep),
        penalty,
        weight,
        share_noise,
        detach_clean,
        supervised=supervised,
        replaces=supervised,
        name="expectation_linear",
    )
    return Objective(model, loss, term, **options)


@recipe
def fraternal_dropout(
    model: nn.Module,
    loss: Loss,
    at: str | Site = "**",
    *,
    keep: float | None = None,
    penalty: Penalty = js,
    weight: Weight = 1.0,
    detach_clean: bool | None = None,
    share_noise: bool = False,
    **options: Any,
) -> Objective:
    """Fraternal dropout (Zolna et al. 2018; eq. 3): `(CE1 + CE2) / 2 + weight * D(p1, p2)` under two random masks.

    >>> import sparring as sp, torch
    >>> model, last = nn.LSTM(3, 4, batch_first=True), lambda result: result[0][:, -1]
    >>> objective = sp.recipes.fraternal_dropout(model, sp.cross_entropy, outputs=last)
    >>> objective(torch.randn(2, 5, 3), torch.tensor([0, 3])).backward()

    Args:
        model: has an RNN or dropout layers.
        loss: per-example loss.
        at: glob of RNNs, or any mask site.
        keep: keep rate of both masks. None is that of the dropout layers at the site, .9 for an RNN.
        penalty: distance between the two outputs.
        weight: of the penalty.
        detach_clean: the first network is a constant target; None: where there are no labels.
        share_noise: whether dropout elsewhere is the same in both passes; the published method draws it anew.
        options: go to `Objective`.
    """
    player = random_mask(model, at, keep)
    site = mask_site(at, None)
    if keep is not None or own_rate(model, at) is None:  # else the layers draw the first mask by themselves
        site = with_keep(site, player.keep)
    term = Term(
        site,
        player,
        penalty,
        weight,
        share_noise,
        detach_clean,
        supervised=0.5,
        replaces=0.5,
        name="fraternal_dropout",
    )
    return Objective(model, loss, term, **options)


def mask_site(at: str | Site, keep: float | None = 1.0) -> Site:
    """A glob means the recurrent connection of those RNNs, with this keep rate in the clean pass; a site is itself."""
    return Recurrent(at, keep=keep) if isinstance(at, str) else at


def random_mask(model: nn.Module, at: str | Site, keep: float | None) -> Bernoulli:
    """Random masks at the rate that is given, or that the site names, or at which its layers draw, or else .9."""
    if keep is None:
        named = at.keep if isinstance(at, MaskSite) else None
        keep = own_rate(model, at) if named in (None, 1) else named
    return Bernoulli(0.9 if keep is None else keep, shared=isinstance(at, RecurrentWeights))


def own_rate(model: nn.Module, at: str | Site) -> float | None:
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


def with_keep(site: Site, keep: float) -> Site:
    """The site with that keep rate in the clean pass, where it does not name one."""
    if isinstance(site, MaskSite) and site.keep is None:
        return replace(site, keep=keep)
    return site
