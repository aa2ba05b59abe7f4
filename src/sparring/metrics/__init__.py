"""Measures: calibration, uncertainty, segmentation, ranking, diversity, attention, robustness."""

from sparring.metrics.attention import Agreement, Explanation, agreement, explain
from sparring.metrics.calibration import Reliability, expected_calibration_error, reliability
from sparring.metrics.correlation import kendall, pearson
from sparring.metrics.segmentation import Confusion, mean_iou
from sparring.metrics.uncertainty import PAvgPU, patch_pavgpu, pavgpu, predictive_entropy, threshold_grid

__all__ = [
    "Agreement",
    "Confusion",
    "Explanation",
    "PAvgPU",
    "Reliability",
    "agreement",
    "expected_calibration_error",
    "explain",
    "kendall",
    "mean_iou",
    "patch_pavgpu",
    "pavgpu",
    "pearson",
    "predictive_entropy",
    "reliability",
    "threshold_grid",
]
