"""Attention, and what it needs: masks, positions, caches."""
