"""Ratings: readers of the published formats."""
