"""Running a model: one pass, one step, replay, randomness."""
