"""Internal. Kernels of others: each file adapts one library to calls by names."""
