"""Internal. The bottom of all rooms: kinds of leaves, dtypes, phrases of errors, names that load at first use."""
