"""Transformations that map over named axes, and checkpointing of the values that they compute."""
