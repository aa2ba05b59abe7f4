"""Diversity of an ensemble as terms of an objective: ADP, DEG, TRS."""

from .gradients import input_gradients, pair_cosines
from .measures import adp, deg, magnitude, similarity
from .terms import ADP, DEG, TRS, members_of

__all__ = [
    "ADP",
    "DEG",
    "TRS",
    "adp",
    "deg",
    "input_gradients",
    "magnitude",
    "members_of",
    "pair_cosines",
    "similarity",
]
