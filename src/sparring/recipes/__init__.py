"""The papers by name: each recipe returns an `Objective`."""

from .additive import adversarial_training, free_at, free_lb, r_drop, salt, smart, vat
from .learned import learnable_bernoulli

__all__ = ["adversarial_training", "free_at", "free_lb", "learnable_bernoulli", "r_drop", "salt", "smart", "vat"]
