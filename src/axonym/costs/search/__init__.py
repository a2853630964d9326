"""Internal. The search for a mapping: choices, the costs of steps, and candidates that a compiler verifies."""
