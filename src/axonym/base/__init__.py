"""Internal. What all other rooms stand on: kinds of leaves, dtypes, phrases of errors, names that load at first use."""
