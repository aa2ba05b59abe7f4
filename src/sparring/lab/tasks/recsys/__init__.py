"""Recommending from likes."""

from .task import TASKS

__all__ = ["TASKS"]
