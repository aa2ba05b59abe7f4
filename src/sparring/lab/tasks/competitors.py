"""The methods of SALT's tables, for fine-tuning and for translation alike: one follower, nine ways to use it.

Every ascent reads the same settings: `radius` and `norm` (`l2` or `linf`) make the ball, `steps`, `step_size` (0: as long
as the ball asks for), `start` and `update` (`normalised`, `raw`, `sign`, `adam`) the ascent in it. `start` is the deviation
of a Gaussian; FreeLB's is the word `uniform`, or such a number.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn

import sparring as sp

from ..errors import LabError, unknown
from ..task import Data, Method, Setting, Trainable, Value

Place = str | sp.Output
Loss = Callable[..., Tensor]
Kit = Callable[[nn.Module, Setting, Data], tuple[Loss, Place, dict[str, Any]]]

PENALTIES = {"kl": sp.kl, "reverse_kl": sp.reverse_kl, "symmetric_kl": sp.symmetric_kl, "js": sp.js}
NORMS: dict[str, Any] = {"l2": sp.L2, "linf": sp.Linf}
# The command line reads "false" as a truth value, which becomes the word "False" where a word is expected.
UNROLLS: dict[str, Any] = {
    "autograd": "autograd",
    "finite_difference": "finite_difference",
    "false": False,
    "no": False,
}


def ball_of(setting: Setting) -> Any:
    """How far the opponent may go."""
    if setting["norm"] not in NORMS:
        raise unknown("norm", setting["norm"], NORMS)
    return NORMS[setting["norm"]](setting["radius"])


def penalty_of(setting: Setting, data: Data) -> Any:
    """What is charged for the change: a divergence of classes, the squared error of a score."""
    if data.extra.get("outputs") == 1:
        return sp.squared_error
    if setting["penalty"] not in PENALTIES:
        raise unknown("penalty", setting["penalty"], PENALTIES)
    return PENALTIES[setting["penalty"]]


def start_of(setting: Setting) -> Any:
    """Where the ascent begins: `uniform`, or the deviation of a Gaussian."""
    start = setting["start"]
    if start == "uniform":
        return start
    try:
        deviation = float(start)
    except ValueError:
        deviation = math.nan
    if not 0 <= deviation < math.inf:
        wanted = "uniform or a number" if isinstance(start, str) else "a number"
        raise LabError(f"start={start} does not fit; {wanted} of at least 0 would")
    return deviation


def unroll_of(setting: Setting) -> Any:
    """How the leader differentiates through the ascent, or False."""
    word = setting["unroll"].lower()
    if word not in UNROLLS:
        raise unknown("unroll", setting["unroll"], UNROLLS)
    return UNROLLS[word]


def objective(name: str, kit: Kit, model: nn.Module, setting: Setting, data: Data) -> Trainable:
    """The method called `name`; `kit` gives the supervised loss, the perturbed place and the objective's options."""
    loss, place, options = kit(model, setting, data)
    if name == "plain":
        return sp.Objective(model, loss, **options)
    weight = setting["weight"]
    if name == "r_drop":
        return sp.recipes.r_drop(model, loss, penalty=penalty_of(setting, data), weight=weight, **options)
    ball, site = ball_of(setting), sp.Output(place) if isinstance(place, str) else place
    if name == "noise":
        term = sp.Term(site, sp.Noise(ball), penalty_of(setting, data), weight)
        return sp.Objective(model, loss, term, **options)
    ascent = {"steps": setting["steps"], "step_size": setting["step_size"] or None, "update": setting["update"]}
    ascent["start"] = start_of(setting)
    if name.startswith("free") and setting["steps"] < 2:
        raise LabError(
            f"steps={setting['steps']} leaves {name} no ascent: its first point is the start; use at least 2"
        )
    if name in ("free_lb", "free_lb_regulariser"):
        penalty = penalty_of(setting, data) if name == "free_lb_regulariser" else None
        return sp.recipes.free_lb(model, loss, at=site, ball=ball, penalty=penalty, weight=weight, **ascent, **options)
    if name == "free_at":
        return sp.recipes.free_at(model, loss, at=site, ball=ball, weight=weight, **ascent, **options)
    if name == "smart":
        charge = {"penalty": penalty_of(setting, data), "proximal_weight": setting["proximal_weight"]}
        return sp.recipes.smart(model, loss, at=site, ball=ball, weight=weight, **charge, **ascent, **options)
    player = sp.PGD(ball, **ascent, unroll=unroll_of(setting) if name == "salt" else False)
    if name == "adversarial_training":
        return sp.Objective(model, loss, sp.Term(site, player, weight=weight), **options)
    term = sp.Term(site, player, penalty_of(setting, data), weight, detach_clean=setting["detach_clean"])
    return sp.Objective(model, loss, term, **options)


def competitors(
    kit: Kit,
    ascent: dict[str, Value],
    paper: dict[str, Value],
    seen_through: float,
    small: dict[str, Value] | None = None,
) -> tuple[Method, ...]:
    """The table of methods.

    Args:
        kit: `(model, setting, data)` to the loss, where to perturb, and options of the objective.
        ascent: the follower's settings.
        paper: what the paper sets instead, at the scale `paper`.
        seen_through: start of SALT's follower: so far away that single precision can differentiate its step.
        small: what every ascent sets instead at the scale `small`; the control has the same radius.
    """
    radius: dict[str, Value] = {"radius": ascent["radius"], "norm": "l2"}
    follower: dict[str, Value] = {"norm": "l2", "update": "normalised", "step_size": 0.0, **ascent}
    # Of the free methods K counts the points, of which the first is the start: theirs is 3, at every scale, as FreeLB's start is.
    free: dict[str, Value] = {**follower, "steps": 3}
    averaged: dict[str, Value] = {**free, "start": "uniform"}
    charged: dict[str, Value] = {"penalty": "kl"}

    def method(name: str, summary: str, *parts: dict[str, Value], **more: Value) -> Method:
        settings: dict[str, Value] = {"weight": 1.0}
        for part in parts:
            settings.update(part)
        settings.update(more)
        # The paper's start is the deviation of a Gaussian: nothing for a method that starts uniformly.
        own = ("steps",) if name.startswith("free") else ()
        published = {k: v for k, v in paper.items() if settings.get(k, "uniform") != "uniform" and k not in own}
        own = ("start",) if name.startswith("free") else ()
        measured = {k: v for k, v in (small or {}).items() if k in settings and k not in own}
        scales = {scale: values for scale, values in (("small", measured), ("paper", published)) if values}
        return Method(name, summary, partial(objective, name, kit), settings, scales)

    return (
        Method("plain", "training as usual", partial(objective, "plain", kit)),
        method("noise", "divergence to random embeddings nearby: the control", radius, charged),
        method("r_drop", "two passes that differ in dropout only: the control", penalty="symmetric_kl"),
        method("adversarial_training", "Adv: loss at the worst embeddings nearby", follower),
        method("free_at", "FreeAT: replays the batch, an update each time", free, start=0.0),
        method("free_lb", "FreeLB: loss averaged over the points of an ascent", averaged),
        method("free_lb_regulariser", "FreeLB as SALT runs it: divergence averaged over an ascent", averaged, charged),
        method(
            "smart", "smoothness plus the Bregman proximal term", follower, penalty="symmetric_kl", proximal_weight=1.0
        ),
        method("vat", "divergence to the worst embeddings nearby", follower, charged, detach_clean=True),
        method(
            "salt",
            "SALT: differentiates through the opponent's ascent",
            follower,
            charged,
            start=seen_through,
            detach_clean=False,
            unroll="autograd",
        ),
    )
