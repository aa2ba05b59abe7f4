"""bAbI: reader and generator."""
