"""Internal. Prove what an axis means from the program of a function, for arrays of any size."""
