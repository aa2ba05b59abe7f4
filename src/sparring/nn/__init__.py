"""Layers: masked recurrent layers, attention, and the dropouts."""

from sparring.nn.attention import AdditiveAttention, ScaledDotAttention, ScorePoint
from sparring.nn.bernoulli_dropout import BernoulliDropout
from sparring.nn.concrete_dropout import ConcreteDropout
from sparring.nn.consumers import Consumers, column_norms, find_consumers
from sparring.nn.convert import convert
from sparring.nn.dropout_kl import bernoulli_kl, concrete_kl, dropout_kl, gaussian_kl
from sparring.nn.embedding_dropout import EmbeddingDropout
from sparring.nn.gaussian_dropout import GaussianDropout
from sparring.nn.locked_dropout import LockedDropout
from sparring.nn.rates import clamp_after_step, clamp_rates, keep_rates, parameter_groups
from sparring.nn.recurrent import GRU, LSTM, RNN
from sparring.nn.weight_drop import WeightDrop

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "AdditiveAttention",
    "BernoulliDropout",
    "ConcreteDropout",
    "Consumers",
    "EmbeddingDropout",
    "GaussianDropout",
    "LockedDropout",
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
    "find_consumers",
    "gaussian_kl",
    "keep_rates",
    "parameter_groups",
]
