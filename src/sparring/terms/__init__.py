"""What an objective adds up: one file a kind of term."""
