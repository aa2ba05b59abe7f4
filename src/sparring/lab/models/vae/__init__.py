"""Autoencoders for implicit feedback: sparse rows in, a score per item out."""

from .autoencoders import CDAE, DAE, VAE
from .batch import Rows
from .elbo import Annealing, gaussian_kl, multinomial_log_likelihood, standard_log_density
from .iaf import IAF, MaskedStep
from .networks import Encoder, Posterior, SparseLinear, decoder, log_normal
from .sivae import SIVAE
from .vamp import VampPrior, mixture_log_density

__all__ = [
    "CDAE",
    "DAE",
    "IAF",
    "SIVAE",
    "VAE",
    "Annealing",
    "Encoder",
    "MaskedStep",
    "Posterior",
    "Rows",
    "SparseLinear",
    "VampPrior",
    "decoder",
    "gaussian_kl",
    "log_normal",
    "mixture_log_density",
    "multinomial_log_likelihood",
    "standard_log_density",
]
