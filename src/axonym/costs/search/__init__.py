"""Internal. The search for a mapping: choices, what the steps cost, and the candidates that a compiler verifies."""
