"""A few labels and many unlabelled images."""

from .task import TASKS

__all__ = ["TASKS"]
