"""Internal. Kernels of other libraries: each file adapts one library to named axes."""
