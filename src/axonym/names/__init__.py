"""All reasoning about names, without JAX."""
