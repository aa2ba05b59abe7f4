"""Dropout layers: learned, concrete, Gaussian, locked, of embeddings and of recurrent weights."""
