"""Gradients with respect to the logits of Bernoulli masks: unbiased estimators and the exact sum."""

from ..terms.learned import DropoutKL, LearnedRates
from .antithetic import ARM, DisARM
from .enumeration import Enumerate
from .sampling import Estimator, Evaluate, surrogate, uniforms_given
from .score import LeaveOneOut, Reinforce

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
