"""Masked recurrent layers: the kernels, and the readable oracle beside them."""
