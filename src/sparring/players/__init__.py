"""How a perturbation is chosen: one file a way of choosing."""

from .directions import WordDirections
from .fast_gradient import FastGradient
from .greedy_flip import GreedyFlip
from .interpretable import Interpretable
from .noise import Bernoulli, Noise
from .pgd import PGD
from .player import Game, Player, Response

__all__ = [
    "PGD",
    "Bernoulli",
    "FastGradient",
    "Game",
    "GreedyFlip",
    "Interpretable",
    "Noise",
    "Player",
    "Response",
    "WordDirections",
]
