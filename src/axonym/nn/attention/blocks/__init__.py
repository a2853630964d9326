"""Internal. Attention with one block of scores at a time: what a block is given, and the loops over blocks."""
