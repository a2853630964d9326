"""Internal. A cache of keys and values for decoding, and how it is written in place."""
