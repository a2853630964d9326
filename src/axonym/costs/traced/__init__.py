"""Internal. The reader of traced programs: what equations compute, send and keep, by the types of arrays."""
