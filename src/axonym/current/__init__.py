"""Internal. Values that are current inside a `with` block: `features` registers them, `blocks` keeps their order."""
