"""Internal. How named arrays answer Python, NumPy and treescope: what they print, and which functions take them."""
