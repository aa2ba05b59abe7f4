"""Gradients with respect to the logits of Bernoulli masks: unbiased estimators and the exact sum."""

from sparring.estimators.antithetic import ARM, DisARM
from sparring.estimators.enumeration import Enumerate
from sparring.estimators.sampling import Estimator, Evaluate, surrogate, uniforms_given
from sparring.estimators.score import LeaveOneOut, Reinforce
from sparring.estimators.terms import DropoutKL, LearnedRates

__all__ = [
    "ARM",
    "DisARM",
    "DropoutKL",
    "Enumerate",
    "Estimator",
    "Evaluate",
    "LearnedRates",
    "LeaveOneOut",
    "Reinforce",
    "surrogate",
    "uniforms_given",
]
