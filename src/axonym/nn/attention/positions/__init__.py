"""Internal. Embeddings and biases of positions, and orders of positions."""
