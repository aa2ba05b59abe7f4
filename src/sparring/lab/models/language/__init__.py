"""Recurrent language models, and what is computed through their vocabulary."""

from .awd_lstm import AWDLSTM, Reading
from .head import VocabularyHead
from .reviews import ReviewClassifier, ReviewReader

__all__ = ["AWDLSTM", "Reading", "ReviewClassifier", "ReviewReader", "VocabularyHead"]
