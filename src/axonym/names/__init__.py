"""Internal. All reasoning about names, without JAX: which axes stay, in which order, and what expressions mean."""
