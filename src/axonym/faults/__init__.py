"""Internal. Workarounds for faults of XLA and JAX, one file each.

A file says what goes wrong, on which versions and platforms, and which file of `tests/upstream` shows it; its functions
are the guards that callers use by name. `.ci/run` says when a reproducer no longer fails on any supported version: then
the file can be deleted. This room knows layouts, and neither operations nor layers.
"""
