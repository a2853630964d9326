"""Internal. Attention with one block of scores at a time: the operands of a block, and the loops over blocks."""
