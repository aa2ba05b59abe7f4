"""Ensembles trained at once: priority dropouts that share out the features, diversity penalties."""

from sparring.ensembles.calibration import calibrate_gamma
from sparring.ensembles.diversified import PriorityDiversifiedDropout
from sparring.ensembles.ensemble import Ensemble, EnsembleOutput, member_cross_entropy, member_losses
from sparring.ensembles.laplace import LaplacePriorityDropout
from sparring.ensembles.masks import EnsembleDropout
from sparring.ensembles.members import Member

__all__ = [
    "Ensemble",
    "EnsembleDropout",
    "EnsembleOutput",
    "LaplacePriorityDropout",
    "Member",
    "PriorityDiversifiedDropout",
    "calibrate_gamma",
    "member_cross_entropy",
    "member_losses",
]
