"""Internal. The search for a mapping: choices, what steps cost, and candidates that a compiler verifies."""
