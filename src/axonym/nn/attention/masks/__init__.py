"""Internal. Masks, which say which keys a query sees: as conditions, and as arrays."""
