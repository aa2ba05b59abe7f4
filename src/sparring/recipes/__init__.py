"""The papers by name: each recipe returns an `Objective`."""

from .adversarial_dropout import adversarial_dropout
from .adversarial_training import adversarial_training
from .attention import attention_at, attention_iat, attention_noise
from .cutoff import cutoff
from .ensembles import simultaneous
from .free import free_at, free_lb
from .learned import learnable_bernoulli
from .logit_pairing import logit_pairing
from .r_drop import entropy, r_drop
from .random_masks import expectation_linear, fraternal_dropout, ramp_up, variational_dropout
from .salt import salt
from .smart import smart
from .trades import mart, trades
from .vat import vat
from .weight_perturbation import adversarial_weight_perturbation
from .word_iat import word_iat

__all__ = [
    "adversarial_dropout",
    "adversarial_training",
    "adversarial_weight_perturbation",
    "attention_at",
    "attention_iat",
    "attention_noise",
    "cutoff",
    "entropy",
    "expectation_linear",
    "fraternal_dropout",
    "free_at",
    "free_lb",
    "learnable_bernoulli",
    "logit_pairing",
    "mart",
    "r_drop",
    "ramp_up",
    "salt",
    "simultaneous",
    "smart",
    "trades",
    "variational_dropout",
    "vat",
    "word_iat",
]
