"""Attention scores: the site, a registry of adapters, and one file a family of layers."""

from . import interface, multihead, score_point, softmax
from .registry import ScoreVisit, register_attention
from .scores import Scores
from .softmax import through_softmax

__all__ = [
    "ScoreVisit",
    "Scores",
    "interface",
    "multihead",
    "register_attention",
    "score_point",
    "softmax",
    "through_softmax",
]
