"""Images read as sequences."""

from .task import TASKS

__all__ = ["TASKS"]
