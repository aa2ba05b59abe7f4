"""Sentence classification and regression with a pretrained encoder."""

from .task import TASKS

__all__ = ["TASKS"]
