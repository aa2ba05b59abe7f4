"""C sources that are compiled on first use."""
