"""Ensembles trained at once: priority dropouts that share out the features, diversity penalties."""

from sparring.ensembles.calibration import calibrate_gamma
from sparring.ensembles.diversified import PriorityDiversifiedDropout
from sparring.ensembles.diversity import adp, deg, magnitude, similarity
from sparring.ensembles.ensemble import Ensemble, EnsembleOutput, member_cross_entropy, member_losses
from sparring.ensembles.gradients import input_gradients, pair_cosines
from sparring.ensembles.laplace import LaplacePriorityDropout
from sparring.ensembles.masks import EnsembleDropout
from sparring.ensembles.members import Member
from sparring.ensembles.sites import MemberInput
from sparring.ensembles.terms import ADP, DEG, TRS, members_of

__all__ = [
    "ADP",
    "DEG",
    "TRS",
    "Ensemble",
    "EnsembleDropout",
    "EnsembleOutput",
    "LaplacePriorityDropout",
    "Member",
    "MemberInput",
    "PriorityDiversifiedDropout",
    "adp",
    "calibrate_gamma",
    "deg",
    "input_gradients",
    "magnitude",
    "member_cross_entropy",
    "member_losses",
    "members_of",
    "pair_cosines",
    "similarity",
]
