"""Running a model: one pass, one step, replay, recomputation, which positions count."""

from .layout import still_statistics
from .masks import ValidMask
from .means import Reduction
from .one import Arguments, Pass, call, perturbed_call
from .step import Step, logits_of

__all__ = [
    "Arguments",
    "Pass",
    "Reduction",
    "Step",
    "ValidMask",
    "call",
    "logits_of",
    "perturbed_call",
    "still_statistics",
]
