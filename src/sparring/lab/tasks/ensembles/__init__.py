"""Ensembles trained at once, clean and under attack."""

from .task import TASKS

__all__ = ["TASKS"]
