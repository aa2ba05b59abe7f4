"""The studies of this project. One file for the claims that share an experiment; a file defines `STUDIES`."""
