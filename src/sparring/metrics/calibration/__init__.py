"""Calibration: does a confidence of 0.8 come true eight times out of ten?"""

from .bins import Reliability, classwise_calibration_error, expected_calibration_error, reliability
from .scores import Interval, bootstrap, brier, negative_log_likelihood
from .temperature import fit_temperature

__all__ = [
    "Interval",
    "Reliability",
    "bootstrap",
    "brier",
    "classwise_calibration_error",
    "expected_calibration_error",
    "fit_temperature",
    "negative_log_likelihood",
    "reliability",
]
