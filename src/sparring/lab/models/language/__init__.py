"""Recurrent language models, and what is computed through their vocabulary."""

from .awd_lstm import AWDLSTM, Reading
from .head import VocabularyHead

__all__ = ["AWDLSTM", "Reading", "VocabularyHead"]
