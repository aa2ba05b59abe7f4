"""What an objective adds up: one file a kind of term."""

from .diversity import ADP, DEG, TRS
from .dropout_kl import DropoutKL
from .entropy import Entropy
from .free import FreeAT, FreeLB
from .playable import Leading, Playable, Weight
from .proximal import Proximal
from .rates import LearnedRates
from .term import Term

__all__ = [
    "ADP",
    "DEG",
    "TRS",
    "DropoutKL",
    "Entropy",
    "FreeAT",
    "FreeLB",
    "Leading",
    "LearnedRates",
    "Playable",
    "Proximal",
    "Term",
    "Weight",
]
