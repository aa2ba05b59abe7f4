"""Hugging Face's Trainer with any recipe: `SparringTrainer(recipe=...)`, or `with_sparring(YourTrainer)`."""

try:
    import transformers as _transformers  # noqa: F401
except ImportError as error:
    raise ImportError("the Trainer needs transformers>=4.56: pip install 'sparring[hf]'") from error

from .framework import framework_loss
from .trainer import Sparring, SparringTrainer, with_sparring

__all__ = ["Sparring", "SparringTrainer", "framework_loss", "with_sparring"]
