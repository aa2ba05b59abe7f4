"""Ensembles trained at once: priority dropouts that share out the features, diversity penalties."""

from ..sites.members import MemberInput
from ..sites.watched import input_gradients, pair_cosines
from ..terms.diversity import ADP, DEG, TRS, members_of
from ..terms.diversity_measures import adp, deg, magnitude, similarity
from .calibration import calibrate_gamma
from .diversified import PriorityDiversifiedDropout
from .ensemble import Ensemble, EnsembleOutput, member_cross_entropy, member_losses
from .laplace import LaplacePriorityDropout
from .masks import EnsembleDropout
from .members import Member

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
