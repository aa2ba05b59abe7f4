"""An encoder-decoder transformer for translation, and the search for its best sentence."""

from .model import Translator
from .search import translate

__all__ = ["Translator", "translate"]
