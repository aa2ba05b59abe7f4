"""Gradients with respect to the logits of Bernoulli masks: unbiased estimators and the exact sum."""

from .antithetic import ARM, DisARM
from .enumeration import Enumerate
from .sampling import Estimator, Evaluate, surrogate, uniforms_given
from .score import LeaveOneOut, Reinforce

__all__ = [
    "ARM",
    "DisARM",
    "Enumerate",
    "Estimator",
    "Evaluate",
    "LeaveOneOut",
    "Reinforce",
    "surrogate",
    "uniforms_given",
]
