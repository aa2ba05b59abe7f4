"""Claims with the experiments that test them: what to run, what came out, what it means."""

from .study import Arm, Expect, Study, over

__all__ = ["Arm", "Expect", "Study", "over"]
