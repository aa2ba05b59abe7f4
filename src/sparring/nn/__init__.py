"""Layers: masked recurrent layers, attention, and the dropouts."""

from .attention import AdditiveAttention, ScaledDotAttention, ScorePoint
from .dropout.bernoulli import BernoulliDropout
from .dropout.concrete import ConcreteDropout
from .dropout.convert import convert
from .dropout.embedding import EmbeddingDropout
from .dropout.gaussian import GaussianDropout
from .dropout.kl import bernoulli_kl, concrete_kl, dropout_kl, gaussian_kl
from .dropout.locked import LockedDropout
from .dropout.next_layers import NextLayers, column_norms, find_next_layers
from .dropout.rates import clamp_after_step, clamp_rates, keep_rates, parameter_groups
from .dropout.weight_drop import WeightDrop
from .recurrent.layers import GRU, LSTM, RNN

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "AdditiveAttention",
    "BernoulliDropout",
    "ConcreteDropout",
    "EmbeddingDropout",
    "GaussianDropout",
    "LockedDropout",
    "NextLayers",
    "ScaledDotAttention",
    "ScorePoint",
    "WeightDrop",
    "bernoulli_kl",
    "clamp_after_step",
    "clamp_rates",
    "column_norms",
    "concrete_kl",
    "convert",
    "dropout_kl",
    "find_next_layers",
    "gaussian_kl",
    "keep_rates",
    "parameter_groups",
]
