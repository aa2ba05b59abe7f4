"""Word-level language models."""

from .task import TASKS

__all__ = ["TASKS"]
