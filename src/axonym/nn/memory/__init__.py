"""Layers whose state is a matrix from keys to values, for each head."""
