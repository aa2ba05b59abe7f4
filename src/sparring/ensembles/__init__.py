"""Ensembles trained at once: priority dropouts that share out the features, diversity penalties."""

from sparring.ensembles.ensemble import Ensemble, EnsembleOutput, member_cross_entropy, member_losses
from sparring.ensembles.members import Member

__all__ = ["Ensemble", "EnsembleOutput", "Member", "member_cross_entropy", "member_losses"]
