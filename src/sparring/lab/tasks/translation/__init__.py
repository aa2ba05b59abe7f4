"""Translation with an encoder-decoder transformer."""

from .task import TASKS

__all__ = ["TASKS"]
