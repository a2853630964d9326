"""Transformations that map over named axes, and checkpointing of what they compute."""
