"""Ensembles trained at once: priority dropouts that share out the features, diversity penalties."""

from ..losses import member_losses
from ..sites.members import MemberInput
from ..terms.diversity import (
    ADP,
    DEG,
    TRS,
    adp,
    deg,
    input_gradients,
    magnitude,
    members_of,
    pair_cosines,
    similarity,
)
from .calibration import calibrate_gamma
from .diversified import PriorityDiversifiedDropout
from .ensemble import Ensemble, EnsembleOutput, member_cross_entropy
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
