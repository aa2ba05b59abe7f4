"""The papers by name: each recipe returns an `Objective`."""

from .additive import adversarial_training, free_at, free_lb, r_drop, salt, smart, vat
from .attention import attention_at, attention_iat, attention_noise, word_iat
from .learned import learnable_bernoulli

__all__ = [
    "adversarial_training",
    "attention_at",
    "attention_iat",
    "attention_noise",
    "free_at",
    "free_lb",
    "learnable_bernoulli",
    "r_drop",
    "salt",
    "smart",
    "vat",
    "word_iat",
]
