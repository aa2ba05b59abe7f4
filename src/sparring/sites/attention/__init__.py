"""Attention scores: one adapter a family of layers."""
