"""How far a perturbation may go: norms, boxes, flips."""

from .ball import Ball, check_ball, masked
from .box import Box
from .flips import Flips
from .l2 import L2
from .linf import Linf

__all__ = ["L2", "Ball", "Box", "Flips", "Linf", "check_ball", "masked"]
