"""Attacks: callables `attack(model, inputs, targets) -> adversarial inputs`."""

from .black_box import RandomSearch
from .gradient import BIM, FGSM, PGD, paper_pgd
from .objectives import dlr, margin
from .outputs import Logits, logits_of, predictions
from .toolbox import JSMA, AutoAttack, CarliniWagner
from .transfer import Attack, Transfer

__all__ = [
    "BIM",
    "FGSM",
    "JSMA",
    "PGD",
    "Attack",
    "AutoAttack",
    "CarliniWagner",
    "Logits",
    "RandomSearch",
    "Transfer",
    "dlr",
    "logits_of",
    "margin",
    "paper_pgd",
    "predictions",
]
