"""Measures: calibration, uncertainty, segmentation, ranking, diversity, attention, robustness."""

from sparring.metrics.calibration import Reliability, expected_calibration_error, reliability
from sparring.metrics.segmentation import Confusion, mean_iou
from sparring.metrics.uncertainty import PAvgPU, patch_pavgpu, pavgpu, predictive_entropy, threshold_grid

__all__ = [
    "Confusion",
    "PAvgPU",
    "Reliability",
    "expected_calibration_error",
    "mean_iou",
    "patch_pavgpu",
    "pavgpu",
    "predictive_entropy",
    "reliability",
    "threshold_grid",
]
