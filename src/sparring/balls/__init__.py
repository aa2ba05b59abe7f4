"""How far a perturbation may go: norms, boxes, flips."""

from .flips import Flips
from .norms import L2, Ball, Linf

__all__ = ["L2", "Ball", "Flips", "Linf"]
