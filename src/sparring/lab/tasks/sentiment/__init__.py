"""Semi-supervised sentiment of reviews: pre-trained as a language model, then classified."""

from .task import TASKS

__all__ = ["TASKS"]
