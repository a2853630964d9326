"""Internal. Values that are current inside a `with` block: a room of its own for each feature that has one."""
