"""Where a network is perturbed: one file a kind of site."""

from ..nn.matching import match
from .attention import Scores, register_attention, through_softmax
from .input import Input
from .mask import Mask
from .output import Output
from .recurrent import Recurrent, RecurrentWeights
from .site import Site, Slot, Visit
from .weights import Weights
from .words import Words

__all__ = [
    "Input",
    "Mask",
    "Output",
    "Recurrent",
    "RecurrentWeights",
    "Scores",
    "Site",
    "Slot",
    "Visit",
    "Weights",
    "Words",
    "match",
    "register_attention",
    "through_softmax",
]
