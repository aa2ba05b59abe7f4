"""A run is a folder: configuration, metrics, checkpoints, result."""
