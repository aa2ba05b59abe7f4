"""How a perturbation is chosen: one file a way of choosing."""

from .cutoff import Cutoff
from .directions import WordDirections
from .fast_gradient import FastGradient
from .greedy_flip import GreedyFlip
from .interpretable import Interpretable
from .noise import Bernoulli, Noise
from .pgd import PGD
from .player import Game, Player, Random, Response

__all__ = [
    "PGD",
    "Bernoulli",
    "Cutoff",
    "FastGradient",
    "Game",
    "GreedyFlip",
    "Interpretable",
    "Noise",
    "Player",
    "Random",
    "Response",
    "WordDirections",
]
