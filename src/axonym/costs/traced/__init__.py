"""Internal. The reader of traced programs: operations, communication and memory of equations, from types of arrays."""
