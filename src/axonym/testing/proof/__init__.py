"""Internal. Prove what an axis means by the program of a function, for arrays of any size."""
