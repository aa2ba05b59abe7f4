"""Sparring: train any PyTorch model against a sparring partner."""

from . import attacks, balls, ensembles, estimators, metrics, nn, recipes, terms
from .balls import L2, Ball, Flips, Linf
from .estimators import ARM, DisARM, Enumerate, LeaveOneOut, Reinforce
from .losses import binary_cross_entropy, cross_entropy, squared_loss
from .objective import Objective
from .passes import perturbed_call
from .penalties import js, kl, probability_error, reverse_kl, squared_error, symmetric_kl
from .players import (
    PGD,
    Bernoulli,
    Cutoff,
    FastGradient,
    Game,
    GreedyFlip,
    Interpretable,
    Noise,
    Player,
    Response,
    WordDirections,
)
from .predict import predict
from .sites import Input, Mask, Output, Recurrent, RecurrentWeights, Scores, Site, Slot, Weights, Words
from .terms import DropoutKL, Entropy, LearnedRates, Playable, Term

__version__ = "0.1.0"

__all__ = [
    "ARM",
    "L2",
    "PGD",
    "Ball",
    "Bernoulli",
    "Cutoff",
    "DisARM",
    "DropoutKL",
    "Entropy",
    "Enumerate",
    "FastGradient",
    "Flips",
    "Game",
    "GreedyFlip",
    "Input",
    "Interpretable",
    "LearnedRates",
    "LeaveOneOut",
    "Linf",
    "Mask",
    "Noise",
    "Objective",
    "Output",
    "Playable",
    "Player",
    "Recurrent",
    "RecurrentWeights",
    "Reinforce",
    "Response",
    "Scores",
    "Site",
    "Slot",
    "Term",
    "Weights",
    "WordDirections",
    "Words",
    "attacks",
    "balls",
    "binary_cross_entropy",
    "cross_entropy",
    "ensembles",
    "estimators",
    "js",
    "kl",
    "metrics",
    "nn",
    "perturbed_call",
    "predict",
    "probability_error",
    "recipes",
    "reverse_kl",
    "sites",
    "squared_error",
    "squared_loss",
    "symmetric_kl",
    "terms",
]
