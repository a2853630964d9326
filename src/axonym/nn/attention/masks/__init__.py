"""Internal. Which keys a query sees: masks, what a program asks of them, and masks as arrays."""
