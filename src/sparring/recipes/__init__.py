"""The papers by name: each recipe returns an `Objective`."""

from .additive import adversarial_training, free_at, free_lb, r_drop, salt, smart, vat
from .attention import attention_at, attention_iat, attention_noise, word_iat
from .ensembles import simultaneous
from .learned import learnable_bernoulli
from .masks import adversarial_dropout, expectation_linear, fraternal_dropout, ramp_up, variational_dropout

__all__ = [
    "adversarial_dropout",
    "adversarial_training",
    "attention_at",
    "attention_iat",
    "attention_noise",
    "expectation_linear",
    "fraternal_dropout",
    "free_at",
    "free_lb",
    "learnable_bernoulli",
    "r_drop",
    "ramp_up",
    "salt",
    "simultaneous",
    "smart",
    "variational_dropout",
    "vat",
    "word_iat",
]
