"""Certified margins by interval bounds and CROWN (Wu et al., section 4.4)."""

from .certificate import Certificate, certified_radius, certify, output_bounds
from .layers import UnsupportedOperation

__all__ = ["Certificate", "UnsupportedOperation", "certified_radius", "certify", "output_bounds"]
