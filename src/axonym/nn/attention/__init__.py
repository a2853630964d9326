"""Attention, with its masks, positions and caches."""
