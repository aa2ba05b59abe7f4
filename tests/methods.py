"""The one table of all methods. A new method adds a row here and runs through every contract test."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

import sparring as sp
from scenes import SCENES, Scene
from sparring import ensembles, recipes

RECURRENT = ("lstm", "seq2seq")
CLASSIFIERS = ("mlp", "convnet", "lstm", "transformer")
ONE_FOR_ALL = "all examples of a process share one perturbation"
EVERYWHERE = tuple(name for name in SCENES if name not in ("learned", "ensemble"))


@dataclass(frozen=True)
class Method:
    """A recipe that can be built on a scene.

    Attributes:
        name: shown in test ids.
        build: (scene, model, **options) -> Objective; takes `radius=`, `weight=` and options of `Objective`.
        scenes: where it runs.
        ball: the ball that binds its perturbations, from a radius; None for methods without a norm ball.
        label_free: can do without targets.
        apart: why several processes are not one process on the joined batch; empty where they are.
    """

    name: str
    build: Callable[..., sp.Objective]
    scenes: tuple[str, ...] = EVERYWHERE
    ball: Callable[[float], Any] | None = sp.L2
    label_free: bool = False
    apart: str = ""


def _additive(recipe: Callable[..., sp.Objective], ball: Callable[[float], Any] = sp.L2, divergence: bool = True, late: bool = False,
              **fixed: Any) -> Callable[..., sp.Objective]:  # fmt: skip
    def build(scene: Scene, model: nn.Module, radius: float = 0.5, **options: Any) -> sp.Objective:
        if divergence:
            options.setdefault("penalty", scene.penalty)
        return recipe(model, scene.loss, at=scene.late if late else scene.at, ball=ball(radius), **fixed, **options)

    return build


def _control(recipe: Callable[..., sp.Objective]) -> Callable[..., sp.Objective]:
    def build(scene: Scene, model: nn.Module, radius: float = 0.5, **options: Any) -> sp.Objective:
        options.setdefault("penalty", scene.penalty)
        return recipe(model, scene.loss, at=scene.at, by=sp.Noise(sp.L2(radius)), **options)

    return build


def _mart(scene: Scene, model: nn.Module, radius: float = 0.5, **options: Any) -> sp.Objective:
    return recipes.mart(model, scene.loss, at=scene.at, ball=sp.Linf(radius), steps=2, start=1e-2, **options)


def _weights(scene: Scene, model: nn.Module, radius: float = 0.5, **options: Any) -> sp.Objective:
    return recipes.adversarial_weight_perturbation(
        model, scene.loss, at=scene.at, ball=sp.Linf(radius), steps=2, **options
    )


def _entropy(scene: Scene, model: nn.Module, radius: float = 0.5, **options: Any) -> sp.Objective:
    return recipes.entropy(model, scene.loss, **options)


def _noise(scene: Scene, model: nn.Module, radius: float = 0.5, weight: float = 1.0, **options: Any) -> sp.Objective:
    return sp.Objective(
        model, scene.loss, sp.Term(sp.Output(scene.at), sp.Noise(sp.L2(radius)), scene.penalty, weight), **options
    )


def _r_drop(scene: Scene, model: nn.Module, radius: float = 0.5, **options: Any) -> sp.Objective:
    penalty = scene.penalty if scene.penalty is sp.squared_error else sp.symmetric_kl
    return recipes.r_drop(model, scene.loss, penalty=penalty, **options)


def _two_terms(
    scene: Scene, model: nn.Module, radius: float = 0.5, weight: float = 1.0, **options: Any
) -> sp.Objective:
    early = sp.Term(sp.Output(scene.at), sp.PGD(sp.L2(radius), start=1e-2), scene.penalty, weight)
    late = sp.Term(sp.Output(scene.late), sp.FastGradient(sp.L2(radius)), weight=weight)
    return sp.Objective(model, scene.loss, early, late, **options)


def _attention(recipe: Callable[..., sp.Objective], **fixed: Any) -> Callable[..., sp.Objective]:
    def build(scene: Scene, model: nn.Module, radius: float = 0.5, **options: Any) -> sp.Objective:
        return recipe(model, scene.loss, ball=sp.L2(radius), **fixed, **options)

    return build


def _at_scores(recipe: Callable[..., sp.Objective], **fixed: Any) -> Callable[..., sp.Objective]:
    def build(scene: Scene, model: nn.Module, radius: float = 0.5, **options: Any) -> sp.Objective:
        return recipe(model, scene.loss, at=sp.Scores(), ball=sp.L2(radius), **fixed, **options)

    return build


def _learned(**fixed: Any) -> Callable[..., sp.Objective]:
    def build(scene: Scene, model: nn.Module, radius: float = 0.5, weight: float = 1.0, **options: Any) -> sp.Objective:
        return sp.Objective(model, scene.loss, sp.LearnedRates(weight=weight, **fixed), **options)

    return build


def _masks(recipe: Callable[..., sp.Objective], divergence: bool = True, **fixed: Any) -> Callable[..., sp.Objective]:
    def build(scene: Scene, model: nn.Module, radius: float = 0.5, **options: Any) -> sp.Objective:
        if divergence:
            options.setdefault("penalty", scene.penalty)
        return recipe(model, scene.loss, **fixed, **options)

    return build


def _dropout_and_vat(
    scene: Scene, model: nn.Module, radius: float = 0.5, weight: float = 1.0, **options: Any
) -> sp.Objective:
    masks = recipes.adversarial_dropout(
        model, scene.loss, ball=sp.Flips(0.5), penalty=scene.penalty, weight=weight, **options
    )
    return masks + recipes.vat(model, scene.loss, at=scene.at, ball=sp.L2(radius), penalty=scene.penalty, weight=weight)


def _diversity(term: Callable[[float], Any]) -> Callable[..., sp.Objective]:
    def build(scene: Scene, model: nn.Module, radius: float = 0.5, weight: float = 1.0, **options: Any) -> sp.Objective:
        return sp.Objective(model, scene.loss, term(weight), **options)

    return build


def _per_member(
    scene: Scene, model: nn.Module, radius: float = 0.5, weight: float = 1.0, **options: Any
) -> sp.Objective:
    return sp.Objective(
        model, scene.loss, sp.Term(ensembles.MemberInput(), sp.FastGradient(sp.Linf(radius)), weight=weight), **options
    )


METHODS = (
    Method("noise", _noise, label_free=True),
    Method("adversarial_training", _additive(recipes.adversarial_training, divergence=False)),
    Method(
        "adversarial_training-linf", _additive(recipes.adversarial_training, sp.Linf, divergence=False), ball=sp.Linf
    ),
    Method("vat", _additive(recipes.vat), label_free=True),
    Method("vat-2", _additive(recipes.vat, steps=2, start=0.1), label_free=True),
    Method("vat-control", _control(recipes.vat), label_free=True),
    Method("vat-late", _additive(recipes.vat, late=True), label_free=True),
    Method("smart", _additive(recipes.smart, sp.Linf, step_size=0.3, start=1e-2), ball=sp.Linf, label_free=True),
    Method("salt", _additive(recipes.salt, start=1e-2), label_free=True),
    Method(
        "salt-adam-2",
        _additive(recipes.salt, sp.Linf, steps=2, update="adam", step_size=0.1, start=1e-2),
        ball=sp.Linf,
        label_free=True,
    ),
    Method("salt-finite", _additive(recipes.salt, unroll="finite_difference", start=1e-2), label_free=True),
    Method("salt-late", _additive(recipes.salt, late=True, start=1e-2), label_free=True),
    Method("trades", _additive(recipes.trades, sp.Linf, steps=2, start=1e-2), ball=sp.Linf, label_free=True),
    Method("mart", _mart, CLASSIFIERS, ball=sp.Linf),
    Method("logit_pairing", _additive(recipes.logit_pairing, sp.Linf, divergence=False, steps=2), ball=sp.Linf),
    Method("adversarial_weight_perturbation", _weights, ("mlp", "convnet", "regression"), ball=None, apart=ONE_FOR_ALL),
    Method("entropy", _entropy, tuple(s for s in EVERYWHERE if s != "regression"), ball=None, label_free=True),
    Method("free_lb", _additive(recipes.free_lb, divergence=False)),
    Method("free_lb-penalty", _additive(recipes.free_lb, steps=2), label_free=True),
    Method("free_at", _additive(recipes.free_at, sp.Linf, divergence=False), ball=sp.Linf),
    Method("r_drop", _r_drop, ball=None, label_free=True),
    Method("two-terms", _two_terms),
    Method("attention_noise", _attention(recipes.attention_noise), ("transformer",)),
    Method("attention_at", _attention(recipes.attention_at), ("transformer",)),
    Method("attention_iat", _attention(recipes.attention_iat, reading="row_sum"), ("transformer",)),
    Method(
        "attention_iat-per_word", _attention(recipes.attention_iat, reading="per_word"), ("transformer",), ball=sp.Linf
    ),
    Method("vat-scores", _at_scores(recipes.vat), ("transformer",), label_free=True),
    Method("salt-scores", _at_scores(recipes.salt, start=1e-2), ("transformer",), label_free=True),
    Method("word_iat", _attention(recipes.word_iat, neighbours=3), ("lstm",)),
    Method("cutoff", _masks(recipes.cutoff, at="dropout", keep=0.6), RECURRENT, ball=None, label_free=True),
    Method("adp", _diversity(lambda w: ensembles.ADP(2 * w, 0.5 * w)), ("ensemble",), ball=None),
    Method("deg", _diversity(ensembles.DEG), ("ensemble",), ball=None),
    Method(
        "trs",
        _diversity(lambda w: ensembles.TRS(40 * w, 2.5 * w, ball=sp.Linf(0.03), steps=2)),
        ("ensemble",),
        ball=None,
        apart="the second half of each process's examples is moved",
    ),
    Method("adversarial_training-member", _per_member, ("ensemble",), ball=sp.Linf),
    Method("learnable_bernoulli", _learned(), ("learned",), ball=None),
    Method("learnable_bernoulli-disarm", _learned(estimator=sp.DisARM()), ("learned",), ball=None),
    Method("learnable_bernoulli-loo", _learned(estimator=sp.LeaveOneOut(3)), ("learned",), ball=None),
    Method(
        "variational_dropout", _masks(recipes.variational_dropout, divergence=False, keep=0.7), RECURRENT, ball=None
    ),
    Method("expectation_linear", _masks(recipes.expectation_linear, keep=0.7), RECURRENT, ball=None, label_free=True),
    Method("fraternal_dropout", _masks(recipes.fraternal_dropout, keep=0.7), RECURRENT, ball=None, label_free=True),
    Method(
        "adversarial_dropout",
        _masks(recipes.adversarial_dropout, ball=sp.Flips(0.5)),
        RECURRENT,
        ball=None,
        label_free=True,
    ),
    Method(
        "adversarial_dropout-2",
        _masks(recipes.adversarial_dropout, ball=sp.Flips(0.5), steps=2),
        RECURRENT,
        ball=None,
        label_free=True,
    ),
    Method(
        "adversarial_dropout-masks",
        _masks(recipes.adversarial_dropout, at=sp.Mask(keep=1.0), ball=sp.Flips(0.5)),
        ball=None,
        label_free=True,
    ),
    Method(
        "adversarial_dropout-weights",
        _masks(recipes.adversarial_dropout, at=sp.RecurrentWeights(), ball=sp.Flips(0.5)),
        RECURRENT,
        ball=None,
        label_free=True,
        apart=ONE_FOR_ALL,
    ),
    Method("adversarial_dropout+vat", _dropout_and_vat, RECURRENT, ball=None, label_free=True),
)


def cases(keep: Callable[[Method], bool] = lambda method: True) -> list[Any]:
    """(method, scene) pairs for `pytest.mark.parametrize`."""
    import pytest

    return [pytest.param(m, SCENES[s], id=f"{m.name}-{s}") for m in METHODS if keep(m) for s in m.scenes]
