"""Recurrent text classifiers with attention."""

from .task import TASKS

__all__ = ["TASKS"]
