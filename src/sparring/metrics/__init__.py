"""Measures: calibration, uncertainty, segmentation, ranking, diversity, attention, robustness."""

from sparring.metrics.attention import Agreement, Explanation, agreement, explain
from sparring.metrics.audit import audit
from sparring.metrics.audit_report import Audit, Check
from sparring.metrics.calibration import Reliability, expected_calibration_error, reliability
from sparring.metrics.certified import Certificate, certified_radius, certify
from sparring.metrics.correlation import kendall, pearson
from sparring.metrics.ranking import RankingReport, evaluate_ranking, ndcg_at_k, recall_at_k
from sparring.metrics.robustness import RobustAccuracy, Sweep, attack_table, robust_accuracy, sweep
from sparring.metrics.segmentation import Confusion, mean_iou
from sparring.metrics.uncertainty import PAvgPU, patch_pavgpu, pavgpu, predictive_entropy, threshold_grid

__all__ = [
    "Agreement",
    "Audit",
    "Certificate",
    "Check",
    "Confusion",
    "Explanation",
    "PAvgPU",
    "RankingReport",
    "Reliability",
    "RobustAccuracy",
    "Sweep",
    "agreement",
    "attack_table",
    "audit",
    "certified_radius",
    "certify",
    "evaluate_ranking",
    "expected_calibration_error",
    "explain",
    "kendall",
    "mean_iou",
    "ndcg_at_k",
    "patch_pavgpu",
    "pavgpu",
    "pearson",
    "predictive_entropy",
    "recall_at_k",
    "reliability",
    "robust_accuracy",
    "sweep",
    "threshold_grid",
]
