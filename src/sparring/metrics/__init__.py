"""Measures: calibration, uncertainty, segmentation, ranking, diversity, attention, robustness."""

from .attention import Agreement, Explanation, agreement, explain
from .audit.audit import audit
from .audit.report import Audit, Check
from .calibration import (
    Interval,
    Reliability,
    bootstrap,
    brier,
    classwise_calibration_error,
    expected_calibration_error,
    fit_temperature,
    negative_log_likelihood,
    reliability,
)
from .certified import Certificate, certified_radius, certify
from .correlation import kendall, pearson
from .diversity import GradientDiversity, ambiguity, gradient_diversity, pairwise_disagreement
from .dropout_theory import Regularisers, WorstMasks, masks_within, regularisers, worst_masks
from .ranking import RankingReport, evaluate_ranking, ndcg_at_k, recall_at_k
from .robustness import RobustAccuracy, Sweep, attack_table, robust_accuracy, sweep
from .segmentation import Confusion, mean_iou
from .subnetworks import (
    Decomposition,
    Perturbed,
    Subnetworks,
    decompose,
    dropout_decomposition,
    mean_adversarial_mask,
    perturb,
    subnetwork_accuracies,
)
from .uncertainty import PAvgPU, patch_pavgpu, pavgpu, predictive_entropy, threshold_grid

__all__ = [
    "Agreement",
    "Audit",
    "Certificate",
    "Check",
    "Confusion",
    "Decomposition",
    "Explanation",
    "GradientDiversity",
    "Interval",
    "PAvgPU",
    "Perturbed",
    "RankingReport",
    "Regularisers",
    "Reliability",
    "RobustAccuracy",
    "Subnetworks",
    "Sweep",
    "WorstMasks",
    "agreement",
    "ambiguity",
    "attack_table",
    "audit",
    "bootstrap",
    "brier",
    "certified_radius",
    "certify",
    "classwise_calibration_error",
    "decompose",
    "dropout_decomposition",
    "evaluate_ranking",
    "expected_calibration_error",
    "explain",
    "fit_temperature",
    "gradient_diversity",
    "kendall",
    "masks_within",
    "mean_adversarial_mask",
    "mean_iou",
    "ndcg_at_k",
    "negative_log_likelihood",
    "pairwise_disagreement",
    "patch_pavgpu",
    "pavgpu",
    "pearson",
    "perturb",
    "predictive_entropy",
    "recall_at_k",
    "regularisers",
    "reliability",
    "robust_accuracy",
    "subnetwork_accuracies",
    "sweep",
    "threshold_grid",
    "worst_masks",
]
